package org.edgepos;

/** The functions of libedgepos_jni.so as they are: see edgepos_mobile.h. Apps take {@code EdgePos}, which keeps its handle safe. */
public final class Native {
  static {
    System.loadLibrary("edgepos_jni");
  }

  /** Takes the text piece by piece, UTF-8 of whole code points; false ends it. */
  public interface Sink {
    boolean text(byte[] utf8);
  }

  private Native() {}

  /** A handle of an opened model. path: UTF-8. Throws EdgePosException. */
  public static native long open(byte[] path, int context, int threads);

  public static native void close(long handle);

  public static native void cancel(long handle);

  public static native void reset(long handle);

  /**
   * Why the text ended: 0 by the model, 1 as many tokens as asked for, 2 no room for more, 3 cancelled. temperature, topP: times 65536.
   * Throws EdgePosException, and what the sink throws.
   */
  public static native int generate(long handle, byte[] prompt, int maxNewTokens, int temperature, int topK, int topP, long seed, Sink sink);

  /** Bytes of the model, of the session, of the cache per token; tokens held, tokens there is room for. */
  public static native long[] memory(long handle);

  /** The digest of the bundle's self-test, computed here. Throws EdgePosException where it differs. */
  public static native long selftest(long handle);
}
