import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.edgepos.EdgePosException;
import org.edgepos.Native;

/** What an app does with the native methods; every line it prints is a fact that the test compares. */
public final class Main {
  static final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  static byte[] utf8(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static void fact(String name, String value) {
    out.println(name + "\t" + value.replace("\\", "\\\\").replace("\n", "\\n"));
  }

  static String generate(long model, String prompt, int most, double temperature, int topK, double topP, long seed) {
    StringBuilder text = new StringBuilder();
    int[] pieces = {0};
    int end = Native.generate(model, utf8(prompt), most, (int) (temperature * 65536), topK, (int) (topP * 65536), seed, piece -> {
      text.append(new String(piece, StandardCharsets.UTF_8));
      pieces[0]++;
      return true;
    });
    return end + "|" + pieces[0] + "|" + text;
  }

  static void refused(String name, Runnable work) {
    try {
      work.run();
      fact(name, "nothing was thrown");
    } catch (EdgePosException error) {
      fact(name, error.getMessage());
    }
  }

  public static void main(String[] arguments) throws Exception {
    String file = arguments[0], prompt = arguments[1];
    long model = Native.open(utf8(file), 128, 2);
    fact("selftest", String.format("%016x", Native.selftest(model)));
    fact("fresh", Arrays.toString(Native.memory(model)));
    fact("greedy", generate(model, prompt, 40, 0, 0, 1, 0));
    fact("held", Arrays.toString(Native.memory(model)));
    fact("on", generate(model, "", 20, 0, 0, 1, 0));
    Native.reset(model);
    fact("sampled", generate(model, prompt, 40, 0.75, 20, 0.875, -7));
    Native.reset(model);
    fact("full", generate(model, prompt, 1000, 0, 0, 1, 0));
    Native.reset(model);
    fact("emoji", generate(model, "a \uD83D\uDE42 b\u0000c", 8, 0, 0, 1, 0));

    Native.reset(model);
    StringBuilder few = new StringBuilder();
    int end = Native.generate(model, utf8(prompt), 60, 0, 0, 65536, 0, piece -> {
      few.append(new String(piece, StandardCharsets.UTF_8));
      return few.length() < 12;
    });
    fact("enough", end + "|" + few + generate(model, "", 10, 0, 0, 1, 0).replaceFirst("^1\\|\\d+\\|", ""));

    Native.reset(model);
    Thread other = new Thread(() -> Native.cancel(model));
    int[] count = {0};
    end = Native.generate(model, utf8(prompt), 100, 0, 0, 65536, 0, piece -> {
      if (count[0]++ == 3) {
        other.start();
        try {
          other.join();
        } catch (InterruptedException error) {
          throw new IllegalStateException(error);
        }
      }
      return true;
    });
    fact("cancelled", end + "|" + count[0]);
    Native.cancel(model); // nothing runs, so the next text is not ended

    Native.reset(model);
    try {
      Native.generate(model, utf8(prompt), 10, 0, 0, 65536, 0, piece -> {
        throw new IllegalStateException("from the app");
      });
      fact("thrown", "nothing");
    } catch (IllegalStateException error) {
      fact("thrown", error.getMessage());
    }
    Native.reset(model);
    fact("after", generate(model, prompt, 40, 0, 0, 1, 0));

    Native.reset(model);
    refused("long", () -> generate(model, "word ".repeat(200), 1, 0, 0, 1, 0));
    refused("topP", () -> generate(model, prompt, 1, 1, 0, 2, 0));
    refused("most", () -> generate(model, prompt, -1, 0, 0, 1, 0));
    refused("null prompt", () -> Native.generate(model, null, 1, 0, 0, 65536, 0, piece -> true));
    refused("null sink", () -> Native.generate(model, utf8(prompt), 1, 0, 0, 65536, 0, null));
    refused("missing", () -> Native.open(utf8(file + ".not"), 0, 1));
    refused("zero", () -> Native.open(utf8("a\u0000b"), 0, 1));
    refused("damaged", () -> Native.open(utf8(arguments[2]), 0, 1));
    refused("empty", () -> Native.open(utf8(arguments[3]), 0, 1));
    refused("folder", () -> Native.open(utf8("/"), 0, 1));
    refused("context", () -> Native.open(utf8(file), 1 << 20, 1));
    refused("threads", () -> Native.open(utf8(file), 0, 0));
    refused("embedding", () -> Native.open(utf8(arguments[4]), 0, 1));
    Native.close(model);
    Native.close(0);
  }
}
