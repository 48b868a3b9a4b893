package vmm

import (
	"encoding/binary"
	"testing"
)

func TestMPTable(t *testing.T) {
	for _, vcpus := range []int{1, MaxVCPUs} {
		pointer, table := mpTable(vcpus)
		if len(pointer) != 16 || byteSum(pointer) != 0 || binary.LittleEndian.Uint32(pointer[4:]) != mpTableAddr {
			t.Errorf("pointer % x", pointer)
		}
		if byteSum(table) != 0 || int(binary.LittleEndian.Uint16(table[4:])) != len(table) {
			t.Errorf("sum %#x, %d bytes of %d", byteSum(table), binary.LittleEndian.Uint16(table[4:]), len(table))
		}
		if end := mpTableAddr + len(table); end > ebdaStart+0x400 {
			t.Errorf("it ends at %#x, beyond what is reserved", end)
		}
		count := map[byte]int{}
		entries := table[44:]
		for len(entries) > 0 {
			size := 8
			if entries[0] == mpProcessor {
				size = 20
			}
			count[entries[0]]++
			entries = entries[size:]
		}
		if count[mpProcessor] != vcpus || count[mpIOAPIC] != 1 || count[mpBus] != 1 || count[mpInterrupt] != 15 {
			t.Errorf("%d vCPUs: entries %v", vcpus, count)
		}
		total := 0
		for _, n := range count {
			total += n
		}
		if n := int(binary.LittleEndian.Uint16(table[34:])); n != total {
			t.Errorf("it says %d entries, has %d", n, total)
		}
	}
}
