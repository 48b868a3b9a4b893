// Package inside is the first process of the lab's machine: it turns a stock kernel and an
// initramfs into a place where programs find /dev/kvm, a writable ext4 root file system and a
// network, beats the heartbeat that its host watches, and serves the agent.
//
// It is part of the same executable as the program that starts the machine, which packs itself
// into the initramfs and calls [Main] when it finds itself to be process 1.
package inside

// Paths in the initramfs.
const (
	// InitPath is this executable.
	InitPath = "/init"
	// ConfigPath holds a Config as JSON.
	ConfigPath = "/lab.json"
	// ModulesDir holds the modules named by Config.Modules.
	ModulesDir = "/modules"
)

// Config is what the machine's host decides.
type Config struct {
	// Modules are files in ModulesDir, uncompressed, in an order in which they can be loaded.
	Modules []string `json:"modules"`
	// RootSerial is the serial number of the disk for the root file system: ext4, and empty.
	RootSerial string `json:"root_serial"`
	// Mounts are further ext4 disks.
	Mounts []Mount `json:"mounts,omitempty"`
	// Port is the TCP port on which the agent listens.
	Port int `json:"port"`
}

// A Mount is a disk and where to mount it.
type Mount struct {
	Serial string `json:"serial"`
	Dir    string `json:"dir"`
	// Made says that the disk was made for this machine.
	Made bool `json:"made,omitempty"`
}
