/*
 * Reads a static student from one file, in Swift and without any library but Foundation; README.md beside this has the format.
 *
 *     let student = try Student([UInt8](Data(contentsOf: url)))  // in an app: Bundle.main.url(forResource: "student", withExtension: "bin")!
 *     try student.encode("how do I reset it?")  // [Float] of student.dims numbers, of unit length
 *
 * An opened student may be shared by threads.
 */

import Foundation

/// A file that is not a whole and sound student, or a text that has no embedding.
public struct StudentError: Error, CustomStringConvertible {
    public let description: String
}

private let version: UInt32 = 3
private let start = 16  // bytes: magic, version, CRC-32 of all that follows
private let numbers = 15  // of the header
private let sequence = 21  // bits of a letter, or of a place in the letters where above them stands how many they are
private let placeBits = 1 << sequence - 1
private let last = 0x10FFFF
private let most = 1 << 24  // tokens, of a vocabulary or of a text
private let centroids = 256  // at most: a code is a byte
private let space: UInt32 = 32
// a run of characters is 0: removed, 1: spaces, 2: alone, 3: Hangul; above: the first one's letter
private let removed = 0, spaces = 1, alone = 2, hangul = 3
private let ends = "get the file again, or export it again"

private func require(_ holds: Bool, _ fact: String = "its sizes do not fit together") throws {
    if !holds { throw StudentError(description: "damaged: \(fact); \(ends)") }
}

/// Characters, and what becomes of them.
private struct Run: Sendable { let first: Int, last: Int, to: Int }

/// The bytes of a file, and how far they are read. No number of a file makes a sum or a product that overflows.
private struct Reader {
    let bytes: [UInt8]
    var at = start

    func u32(_ place: Int) -> UInt32 { (0..<4).reduce(0) { $0 | UInt32(bytes[place + $1]) << (8 * $1) } }

    func i32(_ place: Int) -> Int { Int(Int32(bitPattern: u32(place))) }

    func half(_ place: Int) -> Double {
        let bits = Int(bytes[place]) | Int(bytes[place + 1]) << 8
        let exponent = bits >> 10 & 31, fraction = Double(bits & 1023)
        let value = exponent > 0 ? scaled(1024 + fraction, exponent - 25) : scaled(fraction, -24)
        return bits & 0x8000 != 0 ? -value : value
    }

    func scaled(_ value: Double, _ exponent: Int) -> Double { value * Double(sign: .plus, exponent: exponent, significand: 1) }

    /// Where the next count * each bytes start.
    mutating func take(_ count: Int, _ each: Int) throws -> Int {
        try require(count >= 0 && each >= 0 && (each == 0 || count <= (bytes.count - at) / each))
        at += count * each
        return at - count * each
    }

    mutating func integers(_ count: Int) throws -> [Int] {
        let place = try take(count, 4)
        return (0..<count).map { i32(place + 4 * $0) }
    }

    mutating func runs(_ count: Int) throws -> [Run] {
        let place = try take(count, 12)
        return stride(from: place, to: at, by: 12).map { Run(first: i32($0), last: i32($0 + 4), to: i32($0 + 8)) }
    }

    mutating func halves(_ count: Int, _ exponent: Int = 0) throws -> [Double] {
        let place = try take(count, 2)
        return (0..<count).map { scaled(half(place + 2 * $0), exponent) }
    }

    /// The code points of a text: a String of Swift equals others that are spelt in another way.
    mutating func text() throws -> [UInt32] {
        let size = try integers(1)[0]
        let place = try take(size, 1)
        var utf8 = bytes[place..<place + size].makeIterator(), decoder = UTF8(), found: [UInt32] = []
        while true {
            switch decoder.decode(&utf8) {
            case .scalarValue(let scalar): found.append(scalar.value)
            case .emptyInput: return found
            case .error: try require(false, "a text that is not UTF-8")
            }
        }
    }

    /// The CRC-32 of all behind the start.
    func checksum() -> UInt32 {
        let ofByte = (0..<256).map { byte in (0..<8).reduce(UInt32(byte)) { rest, _ in rest >> 1 ^ (rest & 1 == 1 ? 0xEDB8_8320 : 0) } }
        var found = UInt32.max
        for byte in bytes[start...] { found = found >> 8 ^ ofByte[Int((found ^ UInt32(byte)) & 255)] }
        return ~found
    }
}

/// Rows of their own, or centroids, which PQ codes of every token select.
private struct Matrix: Sendable {
    let rows: Int, codes: Int, bits: Int, group: Int, groups: Int, size: Int
    let code: Int, scales: [Double], values: Int

    init(_ reader: inout Reader, width: Int, tokens: Int) throws {
        let n = try reader.integers(5)
        (rows, codes, bits, group) = (n[0], n[1], n[2], n[3])
        try require((bits == 4 || bits == 8) && 1...width ~= group && -64...64 ~= n[4])
        try require(0...width ~= codes && 0...(codes > 0 ? centroids : most) ~= rows)
        (groups, size) = ((width - 1) / group + 1, (width * bits + 7) / 8)
        code = try reader.take(tokens, codes)
        let rows = self.rows
        try require(reader.bytes[code..<reader.at].allSatisfy { $0 < rows })
        scales = try reader.halves(rows * groups, n[4])
        values = try reader.take(rows, size)
    }

    /// Component j of a row, or of the one that a token's PQ codes select: j is of block j mod codes.
    func value(_ bytes: [UInt8], _ at: Int, _ j: Int) -> Double {
        if rows == 0 { return 0 }
        let row = codes > 0 ? Int(bytes[code + at * codes + j % codes]) : at
        let byte = Int(bytes[values + row * size + (bits == 8 ? j : j / 2)])
        let value = bits == 8 ? byte - 128 : (byte >> (4 * (j % 2)) & 15) - 8
        return Double(value) * scales[row * groups + j / group]
    }
}

/// A student that is read from the bytes of a file. Throws a StudentError for any other bytes.
public final class Student: Sendable {
    public enum Role: Int, CaseIterable, Sendable { case text, query, document }

    private struct Golden: Sendable { let role: Role, text: [UInt32], embedding: [Double] }

    public let dims: Int, maxTokens: Int
    private let width: Int, hasTanh: Bool, longestWord: Int, unknown: Int
    private let before: [Int], after: [Int], runs: [Run], letters: [Int]
    private let biases: [Double], weights: [Double]?  // of the tokens
    private let table: Matrix, head: Matrix
    private let ids: [ArraySlice<UInt32>: Int]
    private let prompts: [[UInt32]], prefix: [UInt32]
    private let added: [(id: Int, text: [UInt32])]  // the longest come first
    private let golden: [Golden]
    private let bytes: [UInt8]

    public init(_ bytes: [UInt8]) throws {
        var reader = Reader(bytes: bytes)
        self.bytes = bytes
        if !bytes.starts(with: Array("edstudnt".utf8)) { throw StudentError(description: "not a student file; \(ends)") }
        try require(bytes.count >= start + 4 * numbers, "cut off")
        if reader.u32(8) != version {
            throw StudentError(description: "another version of the format; get a reader of that version, or export again")
        }
        let h = try reader.integers(numbers)
        try require(h[0] == bytes.count, "cut off")
        try require(reader.checksum() == reader.u32(12), "its checksum is wrong")
        (width, dims, hasTanh, maxTokens, longestWord, unknown) = (h[2], h[3], h[5] != 0, h[6], h[7], h[8])
        try require(1...most ~= h[1] && 1...65536 ~= width && 1...65536 ~= dims && 1...most ~= maxTokens && 1...1000 ~= longestWord)
        try require(h[9...].allSatisfy { $0 >= 0 } && 0..<h[1] ~= unknown && h[9] < maxTokens && h[10] < maxTokens - h[9])
        try require(h[4] == 0 || h[4] == dims)
        before = try reader.integers(h[9])
        after = try reader.integers(h[10])
        runs = try reader.runs(h[12])
        letters = try reader.integers(h[13])
        try require(Student.areSound(runs, letters))
        let firstBias = try reader.take(h[4], 4)
        biases = (0..<h[4]).map { Double(Float(bitPattern: reader.u32(firstBias + 4 * $0))) }
        table = try Matrix(&reader, width: width, tokens: h[1])
        head = try Matrix(&reader, width: width, tokens: h[1])
        try require(table.codes > 0 || table.rows == h[1])
        try require(head.codes == 0 && dims == (head.rows > 0 ? head.rows : width))
        weights = table.codes > 0 ? try reader.halves(h[1]) : nil
        let tokens = try reader.text().split(separator: 0, omittingEmptySubsequences: false)
        try require(tokens.count == h[1])
        ids = Dictionary(tokens.enumerated().filter { !$1.isEmpty }.map { ($1, $0) }, uniquingKeysWith: { $1 })
        prompts = try Role.allCases.map { _ in try reader.text() }
        prefix = try reader.text()
        var added: [(id: Int, text: [UInt32])] = [], golden: [Golden] = []
        for _ in 0..<h[11] { added.append((try reader.integers(1)[0], try reader.text())) }
        for _ in 0..<h[14] {
            let role = Role(rawValue: try reader.integers(1)[0])
            try require(role != nil)
            golden.append(Golden(role: role!, text: try reader.text(), embedding: try reader.halves(dims)))
        }
        (self.added, self.golden) = (added, golden)
        try require(reader.at == bytes.count && added.allSatisfy { !$0.text.isEmpty })
        try require((before + after + added.map { $0.id }).allSatisfy { 0..<h[1] ~= $0 })
    }

    /// The token ids of a text, with the prompt of its role and special tokens, truncated.
    public func tokenize(_ text: String, _ role: Role = .text) throws -> [Int] {
        try tokenize(text.unicodeScalars.map { $0.value }, role)
    }

    /// The embedding of a text: of unit length.
    public func encode(_ text: String, _ role: Role = .text) throws -> [Float] {
        try embedding(text.unicodeScalars.map { $0.value }, role).map { Float($0) }
    }

    /// The lowest cosine of a golden text's embedding to the stored one.
    public func check() throws -> Double {
        try golden.reduce(1) { worst, each in
            let found = try embedding(each.text, each.role), stored = each.embedding
            return min(worst, product(found, stored) / max(product(stored, stored).squareRoot(), 1e-12))
        }
    }

    private func tokenize(_ text: [UInt32], _ role: Role) throws -> [Int] {
        let whole = prompts[role.rawValue] + text, room = maxTokens - before.count - after.count
        var found: [Int] = [], words: [UInt32] = []  // with spaces between them, up to the next added token
        var place = 0
        while place < whole.count && found.count < room {
            let token = added.first { whole[place...].starts(with: $0.text) }
            if token == nil { words += lettersOf(Int(whole[place])).flatMap(standing) }
            if token != nil || words.last == space { endWords(&words, &found) }
            if let token = token { found.append(token.id) }
            place += token?.text.count ?? 1
        }
        endWords(&words, &found)
        let ids = before + Array(found.prefix(room)) + after
        if ids.isEmpty { throw StudentError(description: "text: has no tokens; leave it out") }
        return ids
    }

    private func embedding(_ text: [UInt32], _ role: Role) throws -> [Double] {
        let ids = try tokenize(text, role)
        var mean = [Double](repeating: 0, count: width)
        for id in ids {
            let weight = (weights?[id] ?? 1) / Double(ids.count)
            for j in 0..<width { mean[j] += weight * table.value(bytes, id, j) }
        }
        var found = head.rows > 0 ? (0..<dims).map { i in (0..<width).reduce(0) { $0 + head.value(bytes, i, $1) * mean[$1] } } : mean
        for (at, bias) in biases.enumerated() { found[at] += bias }
        if hasTanh { found = found.map { tanh($0) } }
        let length = product(found, found).squareRoot()
        try require(length.isFinite, "an embedding that is not finite")
        return found.map { $0 / max(length, 1e-12) }
    }

    private func product(_ one: [Double], _ other: [Double]) -> Double { zip(one, other).reduce(0) { $0 + $1.0 * $1.1 } }

    /// Whether the runs are in order, and all that they become are characters.
    private static func areSound(_ runs: [Run], _ letters: [Int]) -> Bool {
        var past = -1
        for run in runs {
            if run.first <= past || run.last < run.first || run.last > last || run.to < 0 { return false }
            let several = run.to >> sequence
            if several > 0 ? (run.to & placeBits) + several > letters.count : run.last - run.first > last - run.to { return false }
            if run.to == hangul && (run.first < 0xAC00 || run.last > 0xD7A3) { return false }
            past = run.last
        }
        return letters.allSatisfy { 0...last ~= $0 }
    }

    /// The run that holds a character; nil where it stays.
    private func runOf(_ code: Int) -> Run? {
        var low = 0, high = runs.count
        while low < high {
            let middle = (low + high) / 2
            if runs[middle].first <= code { low = middle + 1 } else { high = middle }
        }
        return low > 0 && code <= runs[low - 1].last ? runs[low - 1] : nil
    }

    private func lettersOf(_ code: Int) -> [Int] {
        guard let run = runOf(code), run.to >= hangul else { return [code] }
        if run.to == hangul {
            let syllable = code - 0xAC00
            let parts = [0x1100 + syllable / 588, 0x1161 + syllable % 588 / 28, 0x11A7 + syllable % 28]
            return syllable % 28 == 0 ? Array(parts.dropLast()) : parts
        }
        let place = run.to & placeBits, several = run.to >> sequence
        return several > 0 ? Array(letters[place..<place + several]) : [run.to + code - run.first]
    }

    /// A letter as it stands in a text: a part of words, or what separates them.
    private func standing(_ code: Int) -> [UInt32] {
        let letter = UInt32(code)
        switch runOf(code)?.to {
        case removed: return []
        case spaces: return [space]
        case alone: return [space, letter, space]
        default: return [letter]
        }
    }

    private func endWords(_ words: inout [UInt32], _ found: inout [Int]) {
        for word in words.split(separator: space) { found += tokensOf(word) }
        words = []
    }

    /// The longest token that begins the word, then the longest that goes on, and so to its end.
    private func tokensOf(_ word: ArraySlice<UInt32>) -> [Int] {
        if word.count > longestWord { return [unknown] }
        var found: [Int] = [], start = word.startIndex
        while start < word.endIndex {
            let inside = start > word.startIndex ? prefix : []
            var end = word.endIndex
            while end > start && ids[ArraySlice(inside + word[start..<end])] == nil { end -= 1 }
            guard end > start, let id = ids[ArraySlice(inside + word[start..<end])] else { return [unknown] }
            found.append(id)
            start = end
        }
        return found
    }
}
