package acpi

import (
	"fmt"
	"math"

	"github.com/forkvm/forkvm/devices/rtc"
	"github.com/forkvm/forkvm/devices/serial"
)

// check returns what is wrong with the configuration, nil if nothing is.
func (c Config) check() error {
	if c.VCPUs < 1 || c.VCPUs > MaxVCPUs {
		return fmt.Errorf("%d vCPUs, not 1 to %d", c.VCPUs, MaxVCPUs)
	}
	if err := c.checkInterrupts(); err != nil {
		return err
	}
	if err := c.checkMemory(); err != nil {
		return err
	}
	return c.checkPorts()
}

// checkInterrupts wants every interrupt to exist and to be used once, since
// none is shared.
func (c Config) checkInterrupts() error {
	var used [IOAPICPins]string
	claim := func(gsi uint32, who string) error {
		switch {
		case gsi >= IOAPICPins:
			return fmt.Errorf("%s has interrupt %d, the I/O APIC has %d", who, gsi, IOAPICPins)
		case used[gsi] != "":
			return fmt.Errorf("%s and %s both have interrupt %d", used[gsi], who, gsi)
		}
		used[gsi] = who
		return nil
	}
	for i, v := range c.VirtioMMIO {
		if err := claim(v.GSI, fmt.Sprintf("virtio device %d", i)); err != nil {
			return err
		}
	}
	if c.COM1 != nil {
		if err := claim(c.COM1.GSI, "COM1"); err != nil {
			return err
		}
	}
	if c.VMGenID != nil {
		return claim(c.VMGenID.GSI, "VMGenID")
	}
	return nil
}

func (c Config) checkMemory() error {
	for i, v := range c.VirtioMMIO {
		if v.Size == 0 || v.Base > 1<<32-uint64(v.Size) {
			return fmt.Errorf("virtio device %d at %#x, %#x bytes: not below 4 GiB", i, v.Base, v.Size)
		}
		for j, w := range c.VirtioMMIO[:i] {
			if v.Base < w.Base+uint64(w.Size) && w.Base < v.Base+uint64(v.Size) {
				return fmt.Errorf("virtio devices %d and %d overlap", j, i)
			}
		}
	}
	if g := c.VMGenID; g != nil {
		if g.Addr%generationIDAlign != 0 || g.Addr > math.MaxUint64-GenerationIDSize {
			return fmt.Errorf("VMGenID at %#x", g.Addr)
		}
	}
	return nil
}

// checkPorts wants the I/O ports of the devices described here to be apart.
func (c Config) checkPorts() error {
	type ports struct {
		who         string
		first, size uint32
	}
	all := []ports{{"reset register", ResetPort, 1}}
	if c.COM1 != nil {
		all = append(all, ports{"COM1", uint32(c.COM1.Port), serial.Ports})
	}
	if c.RTC {
		all = append(all, ports{"RTC", rtc.BasePort, rtc.Ports})
	}
	if c.PowerPort != 0 {
		all = append(all, ports{"power device", uint32(c.PowerPort), PowerPorts})
	}
	for i, p := range all {
		if p.first+p.size > 1<<16 {
			return fmt.Errorf("%s at port %#x", p.who, p.first)
		}
		for _, q := range all[:i] {
			if p.first < q.first+q.size && q.first < p.first+p.size {
				return fmt.Errorf("%s and %s share port %#x", q.who, p.who, max(p.first, q.first))
			}
		}
	}
	return nil
}
