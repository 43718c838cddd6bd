package dev.edgedistill;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/**
 * A student, for Android and the JVM; of Kotlin too: Student(bytes).use { it.embed(text) }. CMakeLists.txt beside this builds the
 * library "edgedistill", which holds the core. Threads may share an opened student.
 */
public final class Student implements AutoCloseable {
  static {
    System.loadLibrary("edgedistill");
  }

  /** What a text is: which prompt is put before it. */
  public enum Role { TEXT, QUERY, DOCUMENT }

  private final ByteBuffer data; // the core reads it while the student is open
  private long student;

  /** The bytes of student.bin: a direct buffer, as FileChannel.map returns, is used as it is. */
  public Student(ByteBuffer bytes) {
    data = bytes.isDirect() ? bytes : (ByteBuffer) ByteBuffer.allocateDirect(bytes.remaining()).put(bytes.duplicate()).flip();
    student = open(data, data.remaining());
  }

  public Student(byte[] bytes) {
    this(ByteBuffer.wrap(bytes));
  }

  /** The embedding of a text, of unit length; of a classifier, its logits. IllegalArgumentException says what is wrong. */
  public float[] embed(String text, Role role) {
    return embed(opened(), text.getBytes(StandardCharsets.UTF_8), role.ordinal());
  }

  public float[] embed(String text) {
    return embed(text, Role.TEXT);
  }

  /** The token ids of a text, with its role's prompt and special tokens. */
  public int[] tokenize(String text, Role role) {
    return tokenize(opened(), text.getBytes(StandardCharsets.UTF_8), role.ordinal());
  }

  /** The lowest cosine of a golden text's embedding to what was exported, and the least that the file asks for. */
  public double[] check() {
    return check(opened());
  }

  @Override
  public synchronized void close() {
    if (student != 0) close(student);
    student = 0;
  }

  private long opened() {
    if (student == 0) throw new IllegalStateException("student: closed; open it again");
    return student;
  }

  private static native long open(ByteBuffer data, long size);
  private static native float[] embed(long student, byte[] text, int role);
  private static native int[] tokenize(long student, byte[] text, int role);
  private static native double[] check(long student);
  private static native void close(long student);
}
