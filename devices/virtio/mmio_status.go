package virtio

import (
	"fmt"

	"github.com/forkvm/forkvm/devices"
)

// handshake is the order in which a driver sets the bits of the status
// (section 3.1.1).
var handshake = [...]uint32{statusAcknowledge, statusDriver, statusFeaturesOK, statusDriverOK}

// inOrder tells whether no bit of the handshake is set without those before it.
func inOrder(status uint32) bool {
	for i := 1; i < len(handshake); i++ {
		if status&handshake[i] != 0 && status&handshake[i-1] == 0 {
			return false
		}
	}
	return true
}

// writeStatus takes the driver through the handshake. Bits are only ever added
// (section 2.1.1) but for a 0, which is a reset. A bit is refused, by staying
// 0, if one before it is missing or what it claims is not so.
func (m *MMIO) writeStatus(v uint32) bool {
	if v == 0 {
		m.reset()
		return true
	}
	old := m.status.Load()
	if v&^statusAll != 0 || old&^v&^statusNeedsReset != 0 || old&statusFailed != 0 {
		return false
	}
	m.status.Or(v & statusFailed)
	ok := true
	for _, bit := range handshake {
		if v&^old&bit != 0 {
			ok = m.step(bit) && ok
		}
	}
	return ok
}

// step sets one bit of the handshake if the driver may have it.
func (m *MMIO) step(bit uint32) bool {
	if !inOrder(m.status.Load() | bit) {
		return false
	}
	if bit == statusFeaturesOK && !m.acceptable(m.driverFeatures) {
		return false
	}
	m.status.Or(bit)
	if bit != statusDriverOK {
		return true
	}
	// The device is live from here on, whether it can serve or not.
	if err := m.start(); err != nil {
		m.fail(err)
		return false
	}
	return true
}

// acceptable tells whether features are a subset of what was offered and of a
// driver that knows this version (section 6.1).
func (m *MMIO) acceptable(features uint64) bool {
	return features&^m.offered == 0 && features&FeatureVersion1 != 0
}

// start activates the device with its queues at their beginning.
func (m *MMIO) start() error {
	for i, q := range m.queues {
		m.queues[i] = QueueState{
			MaxSize: q.MaxSize, Size: q.Size, Ready: q.Ready,
			Desc: q.Desc, Avail: q.Avail, Used: q.Used,
			SignalledUsedValid: true,
		}
	}
	return m.activate()
}

// activate hands the ready queues to the device as m.queues describes them.
func (m *MMIO) activate() error {
	live := make([]*Queue, len(m.queues))
	for i, st := range m.queues {
		if !st.Ready {
			continue
		}
		q, err := NewQueue(m.mem, st, m.driverFeatures)
		if err != nil {
			return fmt.Errorf("virtio: mmio: queue %d: %w", i, err)
		}
		q.report = m.fail
		live[i] = q
	}
	err := m.dev.Activate(Activation{
		Memory:        m.mem,
		Queues:        live,
		Features:      m.driverFeatures,
		Interrupt:     devices.InterruptFunc(func() { m.interrupt(interruptUsed) }),
		ConfigChanged: m.ConfigChanged,
	})
	if err != nil {
		return fmt.Errorf("virtio: mmio: activate: %w", err)
	}
	m.live, m.active = live, true
	return nil
}

// stop ends service.
func (m *MMIO) stop() {
	m.dev.Reset()
	m.live, m.active = nil, false
}

// reset is stop, and every register as at power-on but ConfigGeneration, which
// only ever grows.
func (m *MMIO) reset() {
	m.stop()
	m.clear()
}

func (m *MMIO) clear() {
	m.status.Store(0)
	m.interruptStatus.Store(0)
	m.deviceFeaturesSel, m.driverFeaturesSel, m.queueSel = 0, 0, 0
	m.driverFeatures = 0
	m.queues = make([]QueueState, len(m.maxes))
	for i, n := range m.maxes {
		m.queues[i].MaxSize = n
	}
}
