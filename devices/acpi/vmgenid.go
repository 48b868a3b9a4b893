package acpi

import (
	"errors"
	"fmt"

	"github.com/forkvm/forkvm/devices"
)

// GenerationIDSize is the size of a generation identifier in bytes.
const GenerationIDSize = 16

const generationIDAlign = 8

// errAlign means that an identifier is not at a multiple of 8.
var errAlign = errors.New("address not aligned")

// WriteGenerationID stores the identifier in guest memory. A machine that was
// forked or restored needs a new, random one, written before its vCPUs run,
// and the interrupt of [VMGenID] triggered once the interrupt controllers are
// restored. It must not be called while another call for the same memory is in
// progress.
func WriteGenerationID(m devices.Memory, g VMGenID, id [GenerationIDSize]byte) error {
	p, err := generationID(m, g)
	if err != nil {
		return fmt.Errorf("acpi: write generation id at %#x: %w", g.Addr, err)
	}
	copy(p, id[:])
	return nil
}

// ReadGenerationID returns the identifier in guest memory. The guest can write
// it too, so it proves nothing about what was stored.
func ReadGenerationID(m devices.Memory, g VMGenID) (id [GenerationIDSize]byte, err error) {
	p, err := generationID(m, g)
	if err != nil {
		return id, fmt.Errorf("acpi: read generation id at %#x: %w", g.Addr, err)
	}
	copy(id[:], p)
	return id, nil
}

func generationID(m devices.Memory, g VMGenID) ([]byte, error) {
	if g.Addr%generationIDAlign != 0 {
		return nil, errAlign
	}
	return m.Slice(g.Addr, GenerationIDSize)
}
