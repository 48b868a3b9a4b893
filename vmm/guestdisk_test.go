package vmm

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// What the guest helper does with disks.

const (
	blockSize  = 4096
	testBlocks = 64 // that helperBlocks writes

	logRecord = 512 // bytes of one of helperLog
)

// helperBlocks checks that blocks all over a device are those that one seed
// stands for, writes those of another, and checks these, past the page cache.
func helperBlocks(path string, seeds []string) error {
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
	step := size / testBlocks / blockSize * blockSize
	for n, seed := range seeds {
		for i := range int64(testBlocks) {
			if n > 0 {
				copy(buf, blockOf(seed, i))
				if _, err := f.WriteAt(buf, i*step); err != nil {
					return err
				}
			}
		}
		for i := range int64(testBlocks) {
			if _, err := f.ReadAt(buf, i*step); err != nil {
				return err
			}
			if !bytes.Equal(buf, blockOf(seed, i)) {
				return fmt.Errorf("block %d is not that of seed %s", i, seed)
			}
		}
	}
	return f.Sync()
}

// blockOf is what is in a block; zeros for seed 0.
func blockOf(seed string, i int64) []byte {
	if seed == "0" {
		return make([]byte, blockSize)
	}
	return bytes.Repeat(fmt.Appendf(nil, "%8.8s%8d", seed, i), blockSize/16)
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
