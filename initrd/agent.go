package initrd

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrAgent is wrapped by errors about programs that cannot be a guest's /init.
var ErrAgent = errors.New("cannot be the guest's agent")

// agentName is the file name of an agent binary of its own.
const agentName = "forkvm-agent"

// addAgent adds the agent as /init and returns the path it has on the host.
func addAgent(t *tree, path string) (string, error) {
	if path == "" {
		path = findAgent()
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("agent: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("agent: %w", err)
	}
	if err := checkAgent(file, info); err != nil {
		return "", fmt.Errorf("%s %w: %w", path, ErrAgent, err)
	}
	return path, t.add(entry{path: InitPath[1:], mode: 0o755, size: info.Size(),
		open: func() (io.ReadCloser, error) { return os.Open(path) }})
}

// findAgent returns the path of the default agent.
func findAgent() string {
	var dirs []string
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	if cache, err := CacheDir(); err == nil {
		dirs = append(dirs, cache)
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, agentName); isFile(path) {
			return path
		}
	}
	// Unlike the executable's path, this is right even if the file was replaced.
	return "/proc/self/exe"
}

// checkAgent checks that a file can run in a guest that has no libraries.
func checkAgent(r io.ReaderAt, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	f, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("not an ELF program: %w", err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("built for %s, not for x86-64", f.Machine)
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("%s is no program", f.Type)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("dynamically linked, and the guest has no libraries: build it with CGO_ENABLED=0")
		}
	}
	return nil
}
