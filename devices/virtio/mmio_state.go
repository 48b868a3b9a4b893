package virtio

import (
	"errors"
	"fmt"

	"github.com/forkvm/forkvm/devices"
)

// MMIOState is everything about a transport and its queues that is not in
// guest memory.
type MMIOState struct {
	DeviceType        uint32 // of section 5; guards against a mix-up
	Status            uint32
	InterruptStatus   uint32
	ConfigGeneration  uint32
	DeviceFeaturesSel uint32
	DriverFeaturesSel uint32
	DriverFeatures    uint64
	QueueSel          uint32
	Active            bool // the device is in service
	Queues            []QueueState
}

// Quiesce returns when the device is quiet; see [Device].
func (m *MMIO) Quiesce() { m.dev.Quiesce() }

// Resume ends a Quiesce; see [Device].
func (m *MMIO) Resume() { m.dev.Resume() }

// State is the state of transport and queues. The device must be quiet.
func (m *MMIO) State() MMIOState {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := MMIOState{
		DeviceType:        m.dev.Type(),
		Status:            m.status.Load(),
		InterruptStatus:   m.interruptStatus.Load(),
		ConfigGeneration:  m.generation.Load(),
		DeviceFeaturesSel: m.deviceFeaturesSel,
		DriverFeaturesSel: m.driverFeaturesSel,
		DriverFeatures:    m.driverFeatures,
		QueueSel:          m.queueSel,
		Active:            m.active,
		Queues:            make([]QueueState, len(m.queues)),
	}
	copy(s.Queues, m.queues)
	for i, q := range m.live {
		if q != nil {
			s.Queues[i] = q.State()
		}
	}
	return s
}

// RestoreMMIO makes the transport that s was taken of. dev must be made by its
// own Restore from the state taken at the same instant. The device is quiet
// until Resume.
//
// s may come from a file: it is checked like what a driver writes.
func RestoreMMIO(dev Device, mem devices.Memory, irq devices.Interrupt, s MMIOState) (*MMIO, error) {
	m := NewMMIO(dev, mem, irq)
	if err := m.check(s); err != nil {
		return nil, fmt.Errorf("virtio: mmio: restore: %w", err)
	}
	m.status.Store(s.Status)
	m.interruptStatus.Store(s.InterruptStatus)
	m.generation.Store(s.ConfigGeneration)
	m.deviceFeaturesSel = s.DeviceFeaturesSel
	m.driverFeaturesSel = s.DriverFeaturesSel
	m.driverFeatures = s.DriverFeatures
	m.queueSel = s.QueueSel
	copy(m.queues, s.Queues)
	if !s.Active {
		return m, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.activate(); err != nil {
		return nil, fmt.Errorf("virtio: mmio: restore: %w", err)
	}
	return m, nil
}

// check tells whether a transport of m's device can be in state s. Ring
// addresses and indices are checked when the queues are made.
func (m *MMIO) check(s MMIOState) error {
	switch {
	case s.DeviceType != m.dev.Type():
		return fmt.Errorf("state of device type %d for one of type %d", s.DeviceType, m.dev.Type())
	case s.Status&^statusAll != 0 || !inOrder(s.Status):
		return fmt.Errorf("impossible status %#x", s.Status)
	case s.Active && s.Status&statusDriverOK == 0:
		return errors.New("device in service before DRIVER_OK")
	case s.Status&statusFeaturesOK != 0 && !m.acceptable(s.DriverFeatures):
		return fmt.Errorf("features %#x of %#x offered", s.DriverFeatures, m.offered)
	case s.InterruptStatus&^(interruptUsed|interruptConfig) != 0:
		return fmt.Errorf("impossible interrupt status %#x", s.InterruptStatus)
	case len(s.Queues) != len(m.maxes):
		return fmt.Errorf("%d queues for a device with %d", len(s.Queues), len(m.maxes))
	}
	for i, q := range s.Queues {
		if q.MaxSize != m.maxes[i] || q.Size > q.MaxSize {
			return fmt.Errorf("queue %d: size %d of %d, the device has %d", i, q.Size, q.MaxSize, m.maxes[i])
		}
	}
	return nil
}
