package acpi

import (
	"fmt"

	"github.com/forkvm/forkvm/devices/rtc"
	"github.com/forkvm/forkvm/devices/serial"
)

const rtcCentury = rtc.CenturyRegister

// dsdtTable is the differentiated system description table: the devices that
// a guest could not find by itself. Integers are 64 bits wide, which is what
// revision 2 means.
func dsdtTable(cfg Config) []byte {
	var devices [][]byte
	for i, v := range cfg.VirtioMMIO {
		devices = append(devices, virtioDevice(i, v))
	}
	if cfg.COM1 != nil {
		devices = append(devices, com1Device(*cfg.COM1))
	}
	if cfg.RTC {
		devices = append(devices, rtcDevice())
	}
	if cfg.VMGenID != nil {
		devices = append(devices, generationDevice(*cfg.VMGenID), eventDevice(*cfg.VMGenID))
	}
	t := newTable("DSDT", 2, headerSize)
	if cfg.PowerPort != 0 {
		t = append(t, softOff()...)
	}
	return seal(append(t, scope(`\_SB`, devices...)...))
}

// softOff tells the value of SLP_TYP that switches the machine off, section
// 7.4.2. The package has four elements for historical reasons.
func softOff() []byte {
	return name(`\_S5`, pack(integer(sleepTypeOff), integer(0), integer(0), integer(0)))
}

// virtioDevice is what Linux's virtio_mmio driver binds to.
func virtioDevice(i int, v VirtioMMIO) []byte {
	return device(fmt.Sprintf("V%03X", i),
		name("_HID", text("LNRO0005")),
		name("_UID", integer(uint64(i))),
		name("_CRS", resources(memory32(uint32(v.Base), v.Size), interrupt(v.GSI))))
}

func com1Device(c COM1) []byte {
	return device("COM1",
		name("_HID", eisaID("PNP0501")),
		name("_UID", integer(1)),
		name("_CRS", resources(ports(c.Port, serial.Ports), interrupt(c.GSI))))
}

// rtcDevice has no interrupt. Without this node Linux would register the clock
// on its own and ask for an IRQ 8 that it has not got.
func rtcDevice() []byte {
	return device("RTC",
		name("_HID", eisaID("PNP0B00")),
		name("_CRS", resources(ports(rtc.BasePort, rtc.Ports))))
}

// generationDevice is described in "Virtual Machine Generation ID", Microsoft.
// The compatible identifier is the specification's, the hardware identifier
// the one that every Linux driver since 5.18 knows.
func generationDevice(g VMGenID) []byte {
	return device("VGEN",
		name("_HID", text("VMGENCTR")),
		name("_CID", text("VM_Gen_Counter")),
		name("_DDN", text("VM_Gen_Counter")),
		name("ADDR", pack(integer(g.Addr&0xffffffff), integer(g.Addr>>32))))
}

// eventDevice is the generic event device (section 5.6.9), which turns the
// interrupt into the notification that the generation changed.
func eventDevice(g VMGenID) []byte {
	const changed = 0x80
	return device("GED",
		name("_HID", text("ACPI0013")),
		name("_UID", integer(0)),
		name("_CRS", resources(interrupt(g.GSI))),
		method("_EVT", 1,
			ifEqual(arg0(), integer(uint64(g.GSI)), notify(`\_SB.VGEN`, changed))))
}
