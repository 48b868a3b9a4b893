package agent

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// The ioctls of random(4) that x/sys does not have.
const (
	rndAddEntropy = 0x40085203 // _IOW('R', 3, int[2])
	rndReseedCRNG = 0x5207     // _IO('R', 7)
)

// poolInfo is struct rand_pool_info of linux/random.h with its flexible array.
type poolInfo struct {
	entropyBits int32
	size        int32 // bytes
	buf         [proto.MaxEntropy]byte
}

// creditEntropy gives b to the kernel's generator, of which random is a
// descriptor, at full credit, and has it take a new key at once.
func creditEntropy(random int, b []byte) error {
	info := poolInfo{entropyBits: int32(8 * len(b)), size: int32(len(b))}
	if copy(info.buf[:], b) < len(b) {
		return fmt.Errorf("agent: add entropy: more than %d bytes", len(info.buf))
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(random), rndAddEntropy, uintptr(unsafe.Pointer(&info))); errno != 0 {
		return fmt.Errorf("agent: add entropy: RNDADDENTROPY: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(random), rndReseedCRNG, 0); errno != 0 {
		return fmt.Errorf("agent: add entropy: RNDRESEEDCRNG: %w", errno)
	}
	return nil
}
