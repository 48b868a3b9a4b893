package vmm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// What the guest helper does with disks.

const (
	blockSize  = 4096
	testBlocks = 64 // that helperBlocks writes

	logRecord = 512 // bytes of one of helperLog
)

// helperBlocks writes blocks all over a device, past the page cache, or checks
// what another has written. Where they are depends on nothing, what is in them
// on the seed.
func helperBlocks(args []string) error {
	verb, path := args[0], args[1]
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, 2)
	if err != nil {
		return err
	}
	// O_DIRECT wants memory that is aligned.
	buf, err := unix.Mmap(-1, 0, blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	for i := range int64(testBlocks) {
		at := i * (size / testBlocks / blockSize) * blockSize
		want := blockOf(seed, i)
		if verb == "write" {
			copy(buf, want)
			if _, err := f.WriteAt(buf, at); err != nil {
				return err
			}
			continue
		}
		if _, err := f.ReadAt(buf, at); err != nil {
			return err
		}
		if !bytes.Equal(buf, want) {
			return fmt.Errorf("block %d is not what seed %d wrote", i, seed)
		}
	}
	return f.Sync()
}

// blockOf is what is in a block; zeros for seed 0.
func blockOf(seed uint64, i int64) []byte {
	p := make([]byte, blockSize)
	if seed != 0 {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for k := range p {
			p[k] = byte(r.Uint32())
		}
	}
	return p
}

// helperLog appends numbered records to a file, and says of each when it is on
// disk, until it is killed.
func helperLog(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		if _, err := f.Write(record(i)); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

func record(i int) []byte {
	return append(bytes.Repeat(fmt.Appendf(nil, "%08d", i), (logRecord-8)/8), "record.\n"...)
}
