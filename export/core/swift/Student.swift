import CEdgedistill
import Foundation

/// What is wrong with a file or a text, and the way out.
public struct StudentError: Error, CustomStringConvertible {
  public let description: String
}

/// What a text is: which prompt is put before it.
public enum Role: Int32 {
  case text, query, document
}

/// A student: `try Student(contentsOf: url).embed("How do I reset my password?")`. Threads may share it.
public final class Student: @unchecked Sendable {
  private let data: NSData  // the core reads it while the student is open
  private let student: OpaquePointer

  public init(_ data: Data) throws {
    var error: UnsafePointer<CChar>?
    self.data = data as NSData
    guard let opened = ed_open(self.data.bytes, self.data.length, &error) else { throw Self.failure(error) }
    student = opened
  }

  /// A file, which is mapped.
  public convenience init(contentsOf url: URL) throws {
    try self.init(Data(contentsOf: url, options: .alwaysMapped))
  }

  deinit { ed_close(student) }

  /// The dimensions of an embedding; of a classifier, its labels.
  public var size: Int { ed_size(student) }

  /// The embedding of a text, of unit length; of a classifier, its logits.
  public func embed(_ text: String, as role: Role = .text) throws -> [Float] {
    var text = text, row = [Float](repeating: 0, count: size)
    let error = text.withUTF8 { bytes in
      bytes.withMemoryRebound(to: CChar.self) { ed_embed(student, $0.baseAddress, $0.count, role.rawValue, &row) }
    }
    if error != nil { throw Self.failure(error) }
    return row
  }

  /// The token ids of a text, with its role's prompt and special tokens.
  public func tokenize(_ text: String, as role: Role = .text) throws -> [UInt32] {
    var text = text, ids = [UInt32](repeating: 0, count: ed_max_tokens(student)), count = 0
    let error = text.withUTF8 { bytes in
      bytes.withMemoryRebound(to: CChar.self) { ed_tokenize(student, $0.baseAddress, $0.count, role.rawValue, &ids, &count) }
    }
    if error != nil { throw Self.failure(error) }
    return Array(ids[..<count])
  }

  /// The lowest cosine of a golden text's embedding to what was exported, and the least that the file asks for.
  public func check() throws -> (worst: Double, least: Double) {
    var worst = 0.0, least = 0.0
    if let error = ed_check(student, &worst, &least) { throw Self.failure(error) }
    return (worst, least)
  }

  private static func failure(_ error: UnsafePointer<CChar>?) -> StudentError {
    StudentError(description: error.map { String(cString: $0) } ?? "not opened")
  }
}
