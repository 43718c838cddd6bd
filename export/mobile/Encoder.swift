// Texts in, embeddings out, with onnxruntime and onnxruntime-extensions: the README.md of a package that `edgedistill mobile`
// makes says where everything goes. Compiled in the tests, not run: repeat the golden texts of parity.json on a phone.

import Foundation

#if canImport(OnnxRuntimeBindings)  // by Swift Package Manager; with CocoaPods by a bridging header
    import OnnxRuntimeBindings
    import OnnxRuntimeExtensions
#endif

enum EncoderError: Error {
    case noOutput
    case dimensions(Int, Int)
}

/// Texts in, embeddings of unit length out: `try Encoder(modelPath: path).embed(["a text"])`.
final class Encoder {
    private let environment: ORTEnv
    private let session: ORTSession

    init(modelPath: String, threads: Int32 = 2) throws {
        environment = try ORTEnv(loggingLevel: .warning)
        let options = try ORTSessionOptions()
        // before the graph is opened: its tokenizer needs these operators
        #if canImport(OnnxRuntimeBindings)
            try options.registerCustomOps(functionPointer: OrtExt.getRegisterCustomOpsFunctionPointer())
        #else
            try options.registerCustomOps(functionPointer: RegisterCustomOps)
        #endif
        try options.setIntraOpNumThreads(threads)
        session = try ORTSession(env: environment, modelPath: modelPath, sessionOptions: options)
    }

    /// One embedding for each text, in their order. The graph adds the prompt, truncates and pads.
    func embed(_ texts: [String]) throws -> [[Float]] {
        if texts.isEmpty { return [] }
        let clean = texts.map { $0.replacingOccurrences(of: "\0", with: "") }  // U+0000 would end the text in C
        let input = try ORTValue(tensorStringData: clean, shape: [NSNumber(value: clean.count)])
        return try run(["texts": input], rows: clean.count)
    }

    /// For a package made with --ids: the token ids of one text, by the tokenizers library and tokenizer.json, prompt included.
    func embed(ids: [Int64]) throws -> [Float] {
        let shape: [NSNumber] = [1, NSNumber(value: ids.count)]
        func tensor(_ values: [Int64]) throws -> ORTValue {
            let data = values.withUnsafeBytes { NSMutableData(bytes: $0.baseAddress, length: $0.count) }
            return try ORTValue(tensorData: data, elementType: .int64, shape: shape)
        }
        let mask = [Int64](repeating: 1, count: ids.count)
        return try run(["input_ids": tensor(ids), "attention_mask": tensor(mask)], rows: 1)[0]
    }

    private func run(_ inputs: [String: ORTValue], rows: Int) throws -> [[Float]] {
        let outputs = try session.run(withInputs: inputs, outputNames: ["sentence_embedding"], runOptions: nil)
        guard let output = outputs["sentence_embedding"] else { throw EncoderError.noOutput }
        let data = try output.tensorData() as Data
        let values = data.withUnsafeBytes { Array($0.bindMemory(to: Float.self)) }
        let dimensions = values.count / rows
        return (0..<rows).map { Array(values[$0 * dimensions..<($0 + 1) * dimensions]) }
    }

    /// The cosine of two embeddings of unit length.
    static func cosine(_ a: [Float], _ b: [Float]) throws -> Float {
        guard a.count == b.count else { throw EncoderError.dimensions(a.count, b.count) }
        return zip(a, b).reduce(0) { $0 + $1.0 * $1.1 }
    }
}
