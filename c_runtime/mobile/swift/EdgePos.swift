import CEdgePos
import Foundation

/// What went wrong, in a sentence.
public struct EdgePosError: LocalizedError {
  public let message: String
  public var errorDescription: String? { message }
}

/// A model.gguf that writes text. All methods may be called from any thread; one text is made at a time, and its `onText` may call
/// `cancel` alone.
public final class EdgePos: @unchecked Sendable {
  public enum End: Int32, Sendable { case eos, length, context, cancelled }

  /// Bytes of the file, which is mapped, of the session and of its cache per token; tokens it holds and has room for.
  public struct Memory: Sendable {
    public let modelBytes, sessionBytes, cacheBytesPerToken: UInt64
    public let tokens, context: Int
  }

  private let model: OpaquePointer
  private let using = NSLock()

  /// context: tokens the session can hold, 0: the model's.
  public init(path: String, context: Int32 = 0, threads: Int32 = 4) throws {
    var opened: OpaquePointer?
    try Self.check { epm_open(&opened, path, context, threads, $0) }
    guard let opened else { throw EdgePosError(message: "\(path): not opened") }
    model = opened
  }

  deinit { epm_close(model) }

  /// Writes on behind `prompt` and what came before; `onText` gets the pieces on the thread that calls and ends the text by false.
  /// temperature 0 takes the likeliest token.
  @discardableResult
  public func generate(
    _ prompt: String, maxNewTokens: Int32 = 128, temperature: Double = 0, topK: Int32 = 0, topP: Double = 1, seed: UInt64 = 0,
    onText: (String) -> Bool
  ) throws -> End {
    guard (0...32767).contains(temperature), (0...1).contains(topP) else {
      throw EdgePosError(message: "temperature is \(temperature), topP \(topP); allowed: 0 to 32767 and 0 to 1")
    }
    using.lock()
    defer { using.unlock() }
    var how = epm_sampling(
      max_new_tokens: maxNewTokens, temperature: Self.q16(temperature), top_k: topK, top_p: Self.q16(topP), seed: seed)
    var reason: Int32 = 0
    let bytes = Array(prompt.utf8)
    try withoutActuallyEscaping(onText) { onText in
      var sink = onText
      try withUnsafeMutablePointer(to: &sink) { sink in
        try bytes.withUnsafeBytes { bytes in
          try Self.check {
            epm_generate(
              model, bytes.bindMemory(to: CChar.self).baseAddress, bytes.count, &how,
              { user, text, count in
                let sink = user!.assumingMemoryBound(to: ((String) -> Bool).self).pointee
                let piece = UnsafeRawBufferPointer(start: text, count: count)
                return sink(String(decoding: piece, as: UTF8.self)) ? 0 : 1
              }, sink, &reason, $0)
          }
        }
      }
    }
    return End(rawValue: reason) ?? .cancelled
  }

  /// The pieces of a text as they are made, on a background task; ending the iteration early ends the text.
  public func stream(_ prompt: String, maxNewTokens: Int32 = 128, temperature: Double = 0, topK: Int32 = 0, topP: Double = 1, seed: UInt64 = 0)
    -> AsyncThrowingStream<String, Error>
  {
    AsyncThrowingStream { continuation in
      continuation.onTermination = { [weak self] in if case .cancelled = $0 { self?.cancel() } }
      Task.detached { [self] in
        do {
          try generate(prompt, maxNewTokens: maxNewTokens, temperature: temperature, topK: topK, topP: topP, seed: seed) { piece in
            if case .terminated = continuation.yield(piece) { return false }
            return true
          }
          continuation.finish()
        } catch {
          continuation.finish(throwing: error)
        }
      }
    }
  }

  /// Ends the text that is being made after its current token.
  public func cancel() { epm_cancel(model) }

  /// Forgets every token.
  public func reset() {
    using.lock()
    defer { using.unlock() }
    epm_reset(model)
  }

  public func memory() -> Memory {
    using.lock()
    defer { using.unlock() }
    var m = epm_memory()
    epm_memory_of(model, &m)
    return Memory(
      modelBytes: m.model_bytes, sessionBytes: m.arena_bytes, cacheBytesPerToken: m.kv_bytes_per_token, tokens: Int(m.tokens),
      context: Int(m.context))
  }

  /// The digest of the bundle's self-test, as 16 hex digits: that in manifest.json, or an error.
  public func selftest() throws -> String {
    using.lock()
    defer { using.unlock() }
    var digest: UInt64 = 0
    try Self.check { epm_selftest(model, &digest, $0) }
    return String(format: "%016llx", digest)
  }

  private static func q16(_ x: Double) -> UInt32 { UInt32((x * 65536 + 0.5).rounded(.down)) }

  private static func check(_ call: (UnsafeMutablePointer<CChar>) -> Int32) throws {
    var problem = [CChar](repeating: 0, count: Int(EPM_PROBLEM))
    guard call(&problem) == 0 else { throw EdgePosError(message: String(cString: problem)) }
  }
}
