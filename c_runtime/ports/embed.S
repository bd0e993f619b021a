/* The model in the program: model.gguf of the folder in which the assembler runs. The symbols are those that C sees. */
#if defined(__APPLE__)
#define NAME(symbol) _##symbol
#define TYPE(symbol)
#define SIZE(symbol, end)
        .section __TEXT,__const
#elif defined(_WIN32)
#define NAME(symbol) symbol
#define TYPE(symbol)
#define SIZE(symbol, end)
        .section .rdata,"dr"
#else
#define NAME(symbol) symbol
#if defined(__wasm__)
#define TYPE(symbol) .type symbol,@object
        .section .rodata.edgepos_model,"",@
#else
#define TYPE(symbol) .type symbol,%object
        .section .edgepos_model,"a",%progbits
#endif
#define SIZE(symbol, end) .size symbol, end - symbol
#endif
        .globl NAME(edgepos_model)
        .globl NAME(edgepos_model_end)
        TYPE(edgepos_model)
        TYPE(edgepos_model_end)
        .p2align 6
NAME(edgepos_model):
        .incbin "model.gguf"
NAME(edgepos_model_end):
        .byte 0
.Lend:
        SIZE(edgepos_model, NAME(edgepos_model_end))
        SIZE(edgepos_model_end, .Lend)
#if defined(__linux__)
        .section .note.GNU-stack,"",%progbits
#endif
