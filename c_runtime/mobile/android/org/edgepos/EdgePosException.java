package org.edgepos;

import java.nio.charset.StandardCharsets;

/** What went wrong, in a sentence: a file that is no model, a prompt that does not fit, a number out of its range. */
public final class EdgePosException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  EdgePosException(byte[] message) {
    super(new String(message, StandardCharsets.UTF_8));
  }
}
