/*
 * Reads a static student from one file, in Kotlin and without any library; README.md beside this has the format.
 *
 *     val student = Student(File("student.bin").readBytes()) // on Android: assets.open("student.bin").readBytes()
 *     student.encode("how do I reset it?") // FloatArray of student.dims numbers, of unit length
 *
 * An opened student may be shared by threads.
 */

package edgedistill

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.charset.CharacterCodingException
import java.util.zip.CRC32

/** A file that is not a whole and sound student, or a text that has no embedding. */
class StudentException(message: String) : Exception(message)

private const val VERSION = 3
private const val START = 16 // bytes: magic, version, CRC-32 of all that follows
private const val NUMBERS = 15 // of the header
private const val SEQUENCE = 21 // bits of a letter, or of a place in the letters where above them stands how many they are
private const val PLACE = (1 shl SEQUENCE) - 1
private const val LAST = 0x10FFFF
private const val MOST = 1 shl 24 // tokens, of a vocabulary or of a text
private const val CENTROIDS = 256 // at most: a code is a byte
private const val HANGUL = 3 // a run of characters is 0: removed, 1: spaces, 2: alone, 3: these; above: the first one's letter
private const val ENDS = "get the file again, or export it again"

private fun require(holds: Boolean, fact: String = "its sizes do not fit together") {
    if (!holds) throw StudentException("damaged: $fact; $ENDS")
}

/** A student that is read from the bytes of a file. Throws a StudentException for any other bytes. */
class Student(private val bytes: ByteArray) {
    enum class Role { TEXT, QUERY, DOCUMENT }

    /** codes: of a token, from `start`; a row has `size` bytes from `values`, and `groups` scales. */
    private class Matrix(
        val rows: Int, val codes: Int, val bits: Int, val group: Int, val start: Int, val scales: DoubleArray, val values: Int, width: Int
    ) {
        val groups = (width - 1) / group + 1
        val size = (width * bits + 7) / 8
    }

    private class Golden(val role: Role, val text: String, val place: Int)

    private val buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
    private var at = START
    private val width: Int
    val dims: Int
    private val hasTanh: Boolean
    val maxTokens: Int
    private val longestWord: Int
    private val unknown: Int
    private val before: IntArray
    private val after: IntArray
    private val runs: IntArray
    private val letters: IntArray
    private val biases: FloatArray
    private val table: Matrix
    private val head: Matrix
    private val weights: DoubleArray? // of the tokens
    private val ids = HashMap<String, Int>()
    private val prompts: List<String>
    private val prefix: String
    private val added: List<Pair<String, Int>> // the longest come first
    private val golden: List<Golden>

    init {
        val magic = "edstudnt".toByteArray()
        if (bytes.size < 8 || !bytes.copyOf(8).contentEquals(magic)) throw StudentException("not a student file; $ENDS")
        require(bytes.size >= START + 4 * NUMBERS, "cut off")
        if (buffer.getInt(8) != VERSION) {
            throw StudentException("another version of the format; get a reader of that version, or export again")
        }
        val h = integers(NUMBERS)
        require(h[0] == bytes.size, "cut off")
        val checksum = CRC32().apply { update(bytes, START, bytes.size - START) }
        require(checksum.value.toInt() == buffer.getInt(12), "its checksum is wrong")
        width = h[2]
        dims = h[3]
        hasTanh = h[5] != 0
        maxTokens = h[6]
        longestWord = h[7]
        unknown = h[8]
        require(h[1] in 1..MOST && width in 1..65536 && dims in 1..65536 && maxTokens in 1..MOST && longestWord in 1..1000)
        require(h.drop(9).all { it >= 0 } && unknown in 0 until h[1] && h[9].toLong() + h[10] < maxTokens && h[4] in listOf(0, dims))
        before = integers(h[9])
        after = integers(h[10])
        runs = integers(3L * h[12])
        letters = integers(h[13])
        require(hasSoundRuns())
        biases = take(4L * h[4]).let { start -> FloatArray(h[4]) { buffer.getFloat(start + 4 * it) } }
        table = matrix(h[1])
        head = matrix(h[1])
        require(table.codes > 0 || table.rows == h[1])
        require(head.codes == 0 && dims == if (head.rows > 0) head.rows else width)
        weights = if (table.codes > 0) halves(h[1].toLong(), 1.0) else null
        val tokens = text().split('\u0000')
        require(tokens.size == h[1])
        tokens.forEachIndexed { id, token -> if (token.isNotEmpty()) ids[token] = id }
        prompts = Role.values().map { text() }
        prefix = text()
        added = repeated(h[11]) { integers(1)[0].let { id -> Pair(text(), id) } }
        golden = repeated(h[14]) {
            val role = integers(1)[0]
            require(role in Role.values().indices)
            Golden(Role.values()[role], text(), take(2L * dims))
        }
        require(at == bytes.size && added.all { it.first.isNotEmpty() })
        require((before.asList() + after.asList() + added.map { it.second }).all { it in 0 until h[1] })
    }

    /** The token ids of a text, with the prompt of its role and special tokens, truncated. */
    fun tokenize(text: String, role: Role = Role.TEXT): IntArray {
        val whole = prompts[role.ordinal] + text
        if (!Charsets.UTF_8.newEncoder().canEncode(whole)) {
            throw StudentException("text: half a surrogate pair, which is not text; decode it again")
        }
        val room = maxTokens - before.size - after.size
        val found = ArrayList<Int>()
        val words = StringBuilder() // with spaces between them, up to the next added token
        var place = 0
        while (place < whole.length && found.size < room) {
            val code = whole.codePointAt(place)
            val token = added.firstOrNull { whole.startsWith(it.first, place) }
            if (token == null) lettersOf(code).forEach { words.append(standing(it)) }
            if (token != null || words.endsWith(' ')) endWords(words, found)
            if (token != null) found.add(token.second)
            place += token?.first?.length ?: Character.charCount(code)
        }
        endWords(words, found)
        val ids = before.asList() + found.take(room) + after.asList()
        if (ids.isEmpty()) throw StudentException("text: has no tokens; leave it out")
        return ids.toIntArray()
    }

    /** The embedding of a text: of unit length. */
    fun encode(text: String, role: Role = Role.TEXT): FloatArray {
        val ids = tokenize(text, role)
        val mean = DoubleArray(width)
        for (id in ids) {
            val weight = (weights?.get(id) ?: 1.0) / ids.size
            for (j in 0 until width) mean[j] += weight * value(table, id, j)
        }
        val found = if (head.rows > 0) DoubleArray(dims) else mean
        for (i in 0 until head.rows) for (j in 0 until width) found[i] += value(head, i, j) * mean[j]
        for (i in biases.indices) found[i] += biases[i].toDouble()
        if (hasTanh) for (i in found.indices) found[i] = Math.tanh(found[i])
        val length = Math.sqrt(product(found, found))
        require(!length.isNaN() && !length.isInfinite(), "an embedding that is not finite")
        return FloatArray(dims) { (found[it] / maxOf(length, 1e-12)).toFloat() }
    }

    /** The lowest cosine of a golden text's embedding to the stored one. */
    fun check(): Double = golden.fold(1.0) { worst, each ->
        val embedding = encode(each.text, each.role)
        val stored = DoubleArray(dims) { half(each.place + 2 * it) }
        minOf(worst, product(stored, DoubleArray(dims) { embedding[it].toDouble() }) / maxOf(Math.sqrt(product(stored, stored)), 1e-12))
    }

    private fun product(one: DoubleArray, other: DoubleArray): Double = one.indices.fold(0.0) { sum, at -> sum + one[at] * other[at] }

    /** Where the next bytes start. */
    private fun take(size: Long): Int {
        require(size >= 0 && size <= bytes.size - at)
        at += size.toInt()
        return at - size.toInt()
    }

    private fun integers(count: Number): IntArray {
        val start = take(4 * count.toLong())
        return IntArray(count.toInt()) { buffer.getInt(start + 4 * it) }
    }

    private fun text(): String {
        val size = integers(1)[0]
        val start = take(size.toLong())
        try {
            return Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes, start, size)).toString()
        } catch (error: CharacterCodingException) {
            throw StudentException("damaged: a text that is not UTF-8; $ENDS")
        }
    }

    /** As many of these; a list grows with what is there, whatever the count says. */
    private fun <T> repeated(count: Int, one: () -> T): List<T> {
        val found = ArrayList<T>()
        for (each in 0 until count) found.add(one())
        return found
    }

    private fun half(place: Int): Double {
        val bits = buffer.getShort(place).toInt()
        val exponent = bits shr 10 and 31
        val fraction = (bits and 1023).toDouble()
        val value = if (exponent > 0) Math.scalb(1024 + fraction, exponent - 25) else Math.scalb(fraction, -24)
        return if (bits and 0x8000 != 0) -value else value
    }

    /** Rows of their own, or centroids, which PQ codes of every token select. */
    private fun matrix(tokens: Int): Matrix {
        val (rows, codes, bits, group, exponent) = integers(5)
        require((bits == 4 || bits == 8) && group in 1..width && exponent in -64..64)
        require(codes in 0..width && rows <= (if (codes > 0) CENTROIDS else MOST))
        val start = take(tokens.toLong() * codes)
        require((start until at).all { bytes[it].toInt() and 255 < rows })
        val scales = halves(rows.toLong() * ((width - 1) / group + 1), Math.scalb(1.0, exponent))
        return Matrix(rows, codes, bits, group, start, scales, take(rows.toLong() * ((width * bits + 7) / 8)), width)
    }

    private fun halves(count: Long, factor: Double): DoubleArray {
        val start = take(2 * count)
        return DoubleArray(count.toInt()) { factor * half(start + 2 * it) }
    }

    /** Component j of a matrix' row, or of the one that a token's PQ codes select: j is of block j mod codes. */
    private fun value(matrix: Matrix, at: Int, j: Int): Double {
        if (matrix.rows == 0) return 0.0
        val row = if (matrix.codes > 0) bytes[matrix.start + at * matrix.codes + j % matrix.codes].toInt() and 255 else at
        val byte = bytes[matrix.values + row * matrix.size + if (matrix.bits == 8) j else j / 2].toInt()
        val value = if (matrix.bits == 8) (byte and 255) - 128 else (byte shr 4 * (j % 2) and 15) - 8
        return value * matrix.scales[row * matrix.groups + j / matrix.group]
    }

    /** Whether the runs are in order, and all that they become are characters. */
    private fun hasSoundRuns(): Boolean {
        var past = -1
        for (at in runs.indices step 3) {
            val (first, last, to) = runs.slice(at..at + 2)
            val several = to shr SEQUENCE
            val isInside = if (several > 0) (to and PLACE) + several <= letters.size else to + last - first <= LAST
            if (first <= past || last < first || last > LAST || to < 0 || !isInside) return false
            if (to == HANGUL && (first < 0xAC00 || last > 0xD7A3)) return false
            past = last
        }
        return letters.all { it in 0..LAST }
    }

    /** Where the run starts that holds a character; -1 where it stays. */
    private fun runOf(code: Int): Int {
        var low = 0
        var high = runs.size / 3
        while (low < high) {
            val middle = (low + high) / 2
            if (runs[3 * middle] <= code) low = middle + 1 else high = middle
        }
        return if (low > 0 && code <= runs[3 * low - 2]) 3 * low - 3 else -1
    }

    private fun lettersOf(code: Int): IntArray {
        val run = runOf(code)
        val to = if (run < 0) -1 else runs[run + 2]
        if (to == HANGUL) {
            val syllable = code - 0xAC00
            val parts = intArrayOf(0x1100 + syllable / 588, 0x1161 + syllable % 588 / 28, 0x11A7 + syllable % 28)
            return if (syllable % 28 == 0) parts.copyOf(2) else parts
        }
        if (to > PLACE) return letters.copyOfRange(to and PLACE, (to and PLACE) + (to shr SEQUENCE))
        return intArrayOf(if (to > HANGUL) to + code - runs[run] else code)
    }

    /** A letter as it stands in a text: a part of words, or what separates them. */
    private fun standing(code: Int): String {
        val letter = String(Character.toChars(code))
        val run = runOf(code)
        return if (run < 0) letter else listOf("", " ", " $letter ").getOrElse(runs[run + 2]) { letter }
    }

    private fun endWords(words: StringBuilder, found: ArrayList<Int>) {
        for (word in words.split(' ')) found.addAll(tokensOf(word))
        words.setLength(0)
    }

    /** The longest token that begins the word, then the longest that goes on, and so to its end. */
    private fun tokensOf(word: String): List<Int> {
        if (word.codePointCount(0, word.length) > longestWord) return listOf(unknown)
        val found = ArrayList<Int>()
        var start = 0
        while (start < word.length) {
            val inside = if (start > 0) prefix else ""
            val end = (word.length downTo start + 1).firstOrNull { ids.containsKey(inside + word.substring(start, it)) }
            found.add(ids[inside + word.substring(start, end ?: return listOf(unknown))]!!)
            start = end
        }
        return found
    }
}
