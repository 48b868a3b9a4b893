package inside

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// heartbeatArg, as the only argument, makes the executable beat the heartbeat.
const heartbeatArg = "lab-heartbeat"

// SyncCommand, run in the machine, writes what its file systems hold to their disks.
var SyncCommand = []string{"/proc/1/exe", syncArg}

const syncArg = "lab-sync"

// Main does its work and does not return if this process is the lab's first process or one of its
// helpers. Otherwise it does nothing. It is to be called before anything else.
func Main() {
	switch {
	case os.Getpid() == 1 && os.Args[0] == InitPath:
		err := initialize()
		// There is nobody to return to: the console is kept by the host, and QEMU ends with
		// the machine.
		fmt.Fprintln(os.Stderr, "lab:", err)
		unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
		os.Exit(1)
	case len(os.Args) == 2 && os.Args[1] == heartbeatArg:
		fmt.Fprintln(os.Stderr, "lab: heartbeat:", beat())
		os.Exit(1)
	case len(os.Args) == 2 && os.Args[1] == syncArg:
		unix.Sync()
		os.Exit(0)
	}
}

func initialize() error {
	cfg, err := readConfig()
	if err != nil {
		return err
	}
	if err := mountKernelFilesystems(); err != nil {
		return err
	}
	if err := loadModules(cfg.Modules); err != nil {
		return err
	}
	if err := enterRoot(cfg); err != nil {
		return err
	}
	if err := setLimits(); err != nil {
		return err
	}
	if err := bringUpNetwork(); err != nil {
		return err
	}
	return serve(cfg.Port)
}

func readConfig() (*Config, error) {
	b, err := os.ReadFile(ConfigPath)
	if err != nil {
		return nil, err
	}
	var cfg Config
	if err := json.Unmarshal(b, &cfg); err != nil {
		return nil, fmt.Errorf("%s: %w", ConfigPath, err)
	}
	return &cfg, nil
}

func loadModules(names []string) error {
	for _, name := range names {
		if err := loadModule(filepath.Join(ModulesDir, name)); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// setLimits gives programs room for many guests and descriptors, and makes a kernel that has lost
// its footing stop with a message instead of going on.
func setLimits() error {
	for _, s := range []struct{ name, value string }{
		{"fs/nr_open", "1048576"},
		{"vm/max_map_count", "1048576"},
		{"kernel/panic_on_oops", "1"},
		{"kernel/hostname", "lab"},
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys", s.name), []byte(s.value), 0); err != nil {
			return err
		}
	}
	for _, l := range []struct {
		resource int
		limit    unix.Rlimit
	}{
		{unix.RLIMIT_NOFILE, unix.Rlimit{Cur: 1 << 16, Max: 1 << 20}},
		{unix.RLIMIT_MEMLOCK, unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}},
		{unix.RLIMIT_CORE, unix.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}},
	} {
		if err := unix.Setrlimit(l.resource, &l.limit); err != nil {
			return fmt.Errorf("setrlimit: %w", err)
		}
	}
	return nil
}
