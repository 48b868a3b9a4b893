#include "textflag.h"

// func spin(n uint32)
TEXT ·spin(SB), NOSPLIT, $0-4
	MOVL n+0(FP), CX
again:
	DECL CX
	JNZ  again
	RET
