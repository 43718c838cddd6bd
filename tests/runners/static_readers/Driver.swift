// Driver ids|all FILE…: what Student.swift makes of the texts on stdin, as tests/runners/test_static.py sends and reads them.

import Foundation

@main
enum Driver {
    static func main() throws {
        let input = [UInt8](FileHandle.standardInput.readDataToEndOfFile())
        func integer(_ at: Int) -> Int { (0..<4).reduce(0) { $0 | Int(input[at + $1]) << (8 * $1) } }
        var texts: [(String, Student.Role)] = [], at = 4
        for _ in 0..<integer(0) {
            let size = integer(at + 4)
            let units = stride(from: at + 8, to: at + 8 + size, by: 2).map { UInt16(input[$0]) | UInt16(input[$0 + 1]) << 8 }
            texts.append((String(decoding: units, as: UTF16.self), Student.Role(rawValue: integer(at))!))
            at += 8 + size
        }
        for file in CommandLine.arguments.dropFirst(2) {
            let bytes = [UInt8](try Data(contentsOf: URL(fileURLWithPath: file)))
            var student: Student?
            say {
                let opened = try Student(bytes), worst = try opened.check()
                student = opened
                return "open \(worst)"
            }
            guard let student = student else { continue }
            for (text, role) in texts {
                say {
                    let row = CommandLine.arguments[1] == "all" ? try student.encode(text, role) : []
                    return "\(joined(try student.tokenize(text, role))) | \(joined(row))"
                }
            }
        }
    }

    static func joined<T>(_ values: [T]) -> String { values.map { "\($0)" }.joined(separator: " ") }

    static func say(_ line: () throws -> String) {
        do { print(try line()) } catch let error as StudentError { print("error \(error)") } catch { fatalError("\(error)") }
    }
}
