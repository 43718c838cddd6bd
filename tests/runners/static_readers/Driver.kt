// Driver ids|all FILE…: what Student.kt makes of the texts on stdin, as tests/runners/test_static.py sends and reads them.

import edgedistill.Student
import edgedistill.StudentException
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

fun main(arguments: Array<String>) {
    val input = ByteBuffer.wrap(System.`in`.readBytes()).order(ByteOrder.LITTLE_ENDIAN)
    val texts = List(input.getInt()) {
        val role = Student.Role.values()[input.getInt()]
        val text = CharArray(input.getInt() / 2) { input.getChar() }
        Pair(role, String(text))
    }
    for (file in arguments.drop(1)) {
        var student: Student? = null
        say { Student(File(file).readBytes()).let { val worst = it.check(); student = it; "open $worst" } }
        for ((role, text) in texts) {
            val opened = student ?: break
            say {
                val ids = opened.tokenize(text, role).joinToString(" ")
                "$ids | ${if (arguments[0] == "all") opened.encode(text, role).joinToString(" ") else ""}"
            }
        }
    }
}

fun say(line: () -> String) = println(try { line() } catch (error: StudentException) { "error ${error.message}" })
