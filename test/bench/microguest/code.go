package microguest

import "encoding/binary"

// code is the guest's program and where its fault handler begins. Kernel code,
// which some KVMs interpret, is as short as it can be.
func code() (program []byte, fault uint64) {
	a := assembler{label: map[string]int{}}
	a.kernel()
	a.user()
	return a.finish(), Base + uint64(a.label["fault"])
}

// assembler collects code and fills in the addresses of labels at the end.
type assembler struct {
	b     []byte
	label map[string]int
	refs  []reference
}

// reference is where the distance or address of a label goes.
type reference struct {
	at    int
	label string
	short bool // one byte, relative to what follows; else an absolute address
}

func (a *assembler) op(b ...byte) { a.b = append(a.b, b...) }

// op32 is an instruction that ends with a number of 32 bits.
func (a *assembler) op32(v uint32, b ...byte) {
	a.b = binary.LittleEndian.AppendUint32(append(a.b, b...), v)
}

func (a *assembler) here(label string) { a.label[label] = len(a.b) }

// jump is a jump of two bytes.
func (a *assembler) jump(op byte, label string) {
	a.op(op, 0)
	a.refs = append(a.refs, reference{len(a.b) - 1, label, true})
}

// address is an instruction that ends with the address of a label.
func (a *assembler) address(label string, b ...byte) {
	a.op32(0, b...)
	a.refs = append(a.refs, reference{len(a.b) - 4, label, false})
}

func (a *assembler) finish() []byte {
	for _, r := range a.refs {
		to := a.label[r.label]
		if r.short {
			a.b[r.at] = byte(to - r.at - 1)
		} else {
			binary.LittleEndian.PutUint32(a.b[r.at:], Base+uint32(to))
		}
	}
	return a.b
}

// kernel takes over descriptors and page tables and goes on at user, at
// privilege level 3 with interrupts off.
func (a *assembler) kernel() {
	const flags = 1 << 1
	a.op32(gdtrAddr, 0x0f, 0x01, 0x14, 0x25) // lgdt [gdtr]
	a.op32(idtrAddr, 0x0f, 0x01, 0x1c, 0x25) // lidt [idtr]
	a.op32(stackTop, 0xbc)                   // mov esp, stackTop
	a.op32(PageTables, 0xb8)                 // mov eax, page tables
	a.op(0x0f, 0x22, 0xd8)                   // mov cr3, rax
	a.op32(taskSelector, 0xb8)               // mov eax, task
	a.op(0x0f, 0x00, 0xd8)                   // ltr ax
	a.op(0x6a, userDS)                       // push ss
	a.op(0x6a, 0)                            // push rsp: there is no stack
	a.op(0x6a, flags)                        // push rflags
	a.op(0x6a, userCS)                       // push cs
	a.address("user", 0x68)                  // push rip
	a.op(0x48, 0xcf)                         // iretq
	a.here("fault")                          // interrupts are off: for ever
	a.op(0xf4)                               // hlt
	a.jump(0xeb, "fault")                    // jmp fault
}

// user writes pages and tells, round after round.
func (a *assembler) user() {
	const jmp, je, jne, jrcxz = 0xeb, 0x74, 0x75, 0xe3
	load := func(param uint32, reg byte) {
		// mov r8+reg, [param]
		a.op32(paramsAddr+param, 0x4c, 0x8b, 0x04|reg<<3, 0x25)
	}
	// rdi: next page to write, rcx: pages left.
	write := func(name string) {
		a.jump(jrcxz, name+" written")
		a.here(name)
		a.op(0x48, 0xff, 0x07)             // inc qword [rdi]
		a.op32(PageSize, 0x48, 0x81, 0xc7) // add rdi, PageSize
		a.op(0x48, 0xff, 0xc9)             // dec rcx
		a.jump(jne, name)
		a.here(name + " written")
	}
	a.here("user")
	load(pagesParam, 4)                            // mov r12, [Pages]
	load(childParam, 5)                            // mov r13, [ChildPages]
	load(haltParam, 7)                             // mov r15, [Halt]
	load(spinParam, 0)                             // mov r8, [Spin]
	load(onceParam, 1)                             // mov r9, [Once]
	a.op32(GenerationAddr, 0x4c, 0x8b, 0x34, 0x25) // mov r14, [generation]
	a.op32(Port, 0xba)                             // mov edx, port
	a.op32(Data, 0xbf)                             // mov edi, Data
	a.op(0x4c, 0x89, 0xc9)                         // mov rcx, r9
	write("once")
	a.here("next")
	a.op(0x48, 0x89, 0xfb) // mov rbx, rdi
	a.here("round")
	a.op(0x48, 0x89, 0xdf) // mov rdi, rbx
	a.op(0x4c, 0x89, 0xe1) // mov rcx, r12
	write("pages")
	a.op(0xee)                                     // out dx, al
	a.op32(GenerationAddr, 0x48, 0x8b, 0x04, 0x25) // mov rax, [generation]
	a.op(0x4c, 0x39, 0xf0)                         // cmp rax, r14
	a.jump(jne, "fork")
	a.op(0x4c, 0x89, 0xc1) // mov rcx, r8
	a.jump(jrcxz, "round")
	a.here("spin")
	a.op(0x48, 0xff, 0xc9) // dec rcx
	a.jump(jne, "spin")
	a.jump(jmp, "round")
	a.here("fork")
	a.op(0xee)             // out dx, al
	a.op(0x49, 0x89, 0xc6) // mov r14, rax
	a.op(0x4c, 0x89, 0xe9) // mov rcx, r13
	write("child pages")
	a.op(0xee)             // out dx, al
	a.op(0xee)             // out dx, al
	a.op(0x4d, 0x85, 0xff) // test r15, r15
	a.jump(je, "next")
	a.op(0xf4) // hlt: a fault at this privilege level, whose handler may
}
