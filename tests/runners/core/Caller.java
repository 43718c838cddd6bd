import dev.edgedistill.Student;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.Arrays;

/** Caller STUDENT TEXT: token ids, embedding, check, and what a file that is none is called; a line of JSON each. */
public class Caller {
  public static void main(String[] arguments) throws Exception {
    try (FileChannel file = FileChannel.open(Path.of(arguments[0]))) {
      Student student = new Student(file.map(FileChannel.MapMode.READ_ONLY, 0, file.size()));
      System.out.println(Arrays.toString(student.tokenize(arguments[1], Student.Role.TEXT)));
      System.out.println(Arrays.toString(student.embed(arguments[1])));
      System.out.println(Arrays.toString(student.check()));
      student.close();
    }
    try {
      new Student(new byte[64]).close();
    } catch (IllegalArgumentException error) {
      System.out.println(error.getMessage());
    }
  }
}
