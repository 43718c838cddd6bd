// Texts in, embeddings out, with onnxruntime-android and onnxruntime-extensions-android: the README.md of a package that
// `edgedistill mobile` makes says where everything goes. Compiled in the tests against stubs of the libraries' interfaces,
// never run on a phone there: repeat the golden texts of parity.json on yours.

package edgedistill

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import ai.onnxruntime.extensions.OrtxPackage
import java.nio.LongBuffer

/** Texts in, embeddings of unit length out: `Encoder(file.path).use { it.embed(listOf("a text")) }`. */
class Encoder(modelPath: String, threads: Int = 2) : AutoCloseable {
    private val environment = OrtEnvironment.getEnvironment()
    private val session: OrtSession = OrtSession.SessionOptions().use { options ->
        options.registerCustomOpLibrary(OrtxPackage.getLibraryPath()) // before the graph is opened: its tokenizer needs these operators
        options.setIntraOpNumThreads(threads)
        environment.createSession(modelPath, options)
    }

    /** One embedding for each text, in their order. The graph adds the prompt, truncates and pads. */
    fun embed(texts: List<String>): Array<FloatArray> {
        if (texts.isEmpty()) return emptyArray()
        // U+0000 would end the text in native code; half a surrogate pair is not text, and becomes `?`
        val clean = texts.map { String(it.replace("\u0000", "").toByteArray()) }.toTypedArray()
        return OnnxTensor.createTensor(environment, clean).use { run(mapOf("texts" to it)) }
    }

    /** For a package made with --ids: the token ids of one text, by the tokenizers library and tokenizer.json, prompt included. */
    fun embedIds(ids: LongArray): FloatArray {
        val shape = longArrayOf(1, ids.size.toLong())
        OnnxTensor.createTensor(environment, LongBuffer.wrap(ids), shape).use { tokens ->
            OnnxTensor.createTensor(environment, LongBuffer.wrap(LongArray(ids.size) { 1 }), shape).use { mask ->
                return run(mapOf("input_ids" to tokens, "attention_mask" to mask))[0]
            }
        }
    }

    @Suppress("UNCHECKED_CAST")
    private fun run(inputs: Map<String, OnnxTensor>): Array<FloatArray> =
        session.run(inputs, setOf("sentence_embedding")).use { it[0].value as Array<FloatArray> }

    override fun close() = session.close()

    companion object {
        /** The cosine of two embeddings of unit length. */
        fun cosine(a: FloatArray, b: FloatArray): Float {
            require(a.size == b.size) { "${a.size} and ${b.size} dimensions" }
            var sum = 0f
            for (i in a.indices) sum += a[i] * b[i]
            return sum
        }
    }
}
