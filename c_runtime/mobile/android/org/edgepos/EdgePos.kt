package org.edgepos

import java.io.Closeable
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/**
 * A model.gguf that writes text. Methods throw [EdgePosException]; all may be called from any thread, one text is made at a time, and
 * its onText may call [cancel] alone.
 */
class EdgePos(path: String, context: Int = 0, threads: Int = 4) : Closeable {
    enum class End { EOS, LENGTH, CONTEXT, CANCELLED }

    /** Bytes of the file, which is mapped, of the session and of its cache per token; tokens it holds and has room for. */
    data class Memory(val modelBytes: Long, val sessionBytes: Long, val cacheBytesPerToken: Long, val tokens: Int, val context: Int)

    private val using = ReentrantLock() // the session: one thread at a time
    private val holding = Any() // the handle, for cancel, which does not wait for the session
    private var handle = Native.open(path.toByteArray(), context, threads)

    /** The lock lets its own thread in again: onText, which is called in the middle of a text, would free or change what makes it. */
    private fun <T> alone(work: () -> T): T = using.withLock {
        check(using.holdCount == 1) { "called by onText: return false there and call it behind generate" }
        work()
    }

    private fun <T> use(work: (Long) -> T): T = alone {
        check(handle != 0L) { "this model is closed" }
        work(handle)
    }

    /**
     * Writes on behind [prompt] and what came before. [onText] gets the pieces on the thread that calls and ends the text by false:
     * call it from a background thread, for example in a flow: `callbackFlow { generate(…) { trySend(it).isSuccess }; close() }`.
     * temperature 0 takes the likeliest token.
     */
    @JvmOverloads
    fun generate(
        prompt: String, maxNewTokens: Int = 128, temperature: Double = 0.0, topK: Int = 0, topP: Double = 1.0, seed: Long = 0,
        onText: (String) -> Boolean
    ): End {
        require(temperature >= 0.0 && temperature <= 32767.0) { "temperature is $temperature; allowed: 0 to 32767" }
        require(topP >= 0.0 && topP <= 1.0) { "topP is $topP; allowed: 0 to 1" }
        return use { model ->
            val sink = Native.Sink { onText(String(it, Charsets.UTF_8)) }
            End.values()[Native.generate(model, prompt.toByteArray(), maxNewTokens, q16(temperature), topK, q16(topP), seed, sink)]
        }
    }

    /** Ends the text that is being made after its current token. */
    fun cancel() = synchronized(holding) { if (handle != 0L) Native.cancel(handle) }

    /** Forgets every token. */
    fun reset() = use { Native.reset(it) }

    fun memory(): Memory = use {
        val (model, session, token, tokens, context) = Native.memory(it)
        Memory(model, session, token, tokens.toInt(), context.toInt())
    }

    /** The digest of the bundle's self-test, as 16 hex digits: that in manifest.json, or an exception. */
    fun selftest(): String = use { String.format("%016x", Native.selftest(it)) }

    /** Ends a text that is being made, and frees the session. */
    override fun close() {
        cancel()
        alone {
            synchronized(holding) {
                Native.close(handle)
                handle = 0L
            }
        }
    }

    private fun q16(x: Double): Int = Math.floor(x * 65536 + 0.5).toInt()
}
