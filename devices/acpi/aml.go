package acpi

import "strings"

// The encoder of ACPI machine language, section 20.2. Every function returns
// the bytes of one term; terms nest by being passed on. Names and strings come
// from this package alone, so there is nothing to validate.

// Opcodes.
const (
	opZero       = 0x00
	opOne        = 0x01
	opName       = 0x08
	opByte       = 0x0a
	opWord       = 0x0b
	opDWord      = 0x0c
	opString     = 0x0d
	opQWord      = 0x0e
	opScope      = 0x10
	opBuffer     = 0x11
	opPackage    = 0x12
	opMethod     = 0x14
	opDualName   = 0x2e
	opMultiName  = 0x2f
	opExtension  = 0x5b
	opArg0       = 0x68
	opNotify     = 0x86
	opLEqual     = 0x93
	opIf         = 0xa0
	opExtDevice  = 0x82
	methodSerial = 0x08
)

// packageLength returns the PkgLength of a package whose content, PkgLength
// excluded, has n bytes. It counts itself, and its first byte says how many
// follow.
func packageLength(n int) []byte {
	if n+1 < 1<<6 {
		return []byte{byte(n + 1)}
	}
	for more := 1; more < 3; more++ {
		if total := n + 1 + more; total < 1<<(4+8*more) {
			return packageLengthBytes(total, more)
		}
	}
	return packageLengthBytes(n+4, 3) // 28 bits, more than a table can have
}

func packageLengthBytes(total, more int) []byte {
	p := []byte{byte(more<<6 | total&0xf)}
	for total >>= 4; more > 0; more-- {
		p = append(p, byte(total))
		total >>= 8
	}
	return p
}

// block encodes an opcode followed by a package of terms.
func block(op []byte, terms ...[]byte) []byte {
	body := concat(terms...)
	return concat(op, packageLength(len(body)), body)
}

func concat(terms ...[]byte) []byte {
	var p []byte
	for _, t := range terms {
		p = append(p, t...)
	}
	return p
}

// path encodes a name such as `\_SB.COM1`. Segments shorter than four
// characters are padded with underscores.
func path(name string) []byte {
	var p []byte
	if rest, ok := strings.CutPrefix(name, `\`); ok {
		p, name = append(p, '\\'), rest
	}
	segments := strings.Split(name, ".")
	switch len(segments) {
	case 1:
	case 2:
		p = append(p, opDualName)
	default:
		p = append(p, opMultiName, byte(len(segments)))
	}
	for _, s := range segments {
		p = append(p, (s + "____")[:4]...)
	}
	return p
}

// integer encodes v in the shortest form.
func integer(v uint64) []byte {
	switch {
	case v == 0:
		return []byte{opZero}
	case v == 1:
		return []byte{opOne}
	case v < 1<<8:
		return []byte{opByte, byte(v)}
	case v < 1<<16:
		return little.AppendUint16([]byte{opWord}, uint16(v))
	case v < 1<<32:
		return little.AppendUint32([]byte{opDWord}, uint32(v))
	}
	return little.AppendUint64([]byte{opQWord}, v)
}

func text(s string) []byte {
	return append(append([]byte{opString}, s...), 0)
}

// eisaID encodes an identifier such as PNP0501: three letters of five bits,
// four hexadecimal digits, high byte first.
func eisaID(id string) []byte {
	letters := uint16(id[0]-'@')<<10 | uint16(id[1]-'@')<<5 | uint16(id[2]-'@')
	var digits uint16
	for _, c := range id[3:7] {
		digits = digits<<4 | uint16(strings.IndexRune("0123456789ABCDEF", c))
	}
	return []byte{opDWord, byte(letters >> 8), byte(letters), byte(digits >> 8), byte(digits)}
}

func name(n string, value []byte) []byte {
	return concat([]byte{opName}, path(n), value)
}

func scope(n string, terms ...[]byte) []byte {
	return block([]byte{opScope}, path(n), concat(terms...))
}

func device(n string, terms ...[]byte) []byte {
	return block([]byte{opExtension, opExtDevice}, path(n), concat(terms...))
}

// method encodes a serialized method with args arguments.
func method(n string, args int, terms ...[]byte) []byte {
	return block([]byte{opMethod}, path(n), []byte{methodSerial | byte(args)}, concat(terms...))
}

func pack(elements ...[]byte) []byte {
	return block([]byte{opPackage}, []byte{byte(len(elements))}, concat(elements...))
}

func buffer(p []byte) []byte {
	return block([]byte{opBuffer}, integer(uint64(len(p))), p)
}

// arg0 is the first argument of a method.
func arg0() []byte { return []byte{opArg0} }

func ifEqual(a, b []byte, then ...[]byte) []byte {
	return block([]byte{opIf}, []byte{opLEqual}, a, b, concat(then...))
}

func notify(target string, value uint64) []byte {
	return concat([]byte{opNotify}, path(target), integer(value))
}
