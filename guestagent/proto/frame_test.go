package proto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"testing"
)

func TestFramesRoundTrip(t *testing.T) {
	var buf bytes.Buffer
	w := NewWriter(&buf)
	sizes := []int{0, 1, 5, readStep - 1, readStep, readStep + 1, 3*readStep + 7, MaxPayload}
	for i, n := range sizes {
		p := bytes.Repeat([]byte{byte(i)}, n)
		if err := w.Write(TypeData, p[:n/2], p[n/2:]); err != nil {
			t.Fatal(err)
		}
	}
	r := NewReader(&buf)
	for i, n := range sizes {
		typ, p, err := r.Next()
		if err != nil || typ != TypeData || !bytes.Equal(p, bytes.Repeat([]byte{byte(i)}, n)) {
			t.Fatalf("frame %d: %v, %d bytes, %v", i, typ, len(p), err)
		}
	}
	if _, _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

func TestWriteTooLarge(t *testing.T) {
	var buf bytes.Buffer
	err := NewWriter(&buf).Write(TypeData, make([]byte, MaxPayload), []byte{1})
	if !errors.Is(err, ErrFrameTooLarge) || buf.Len() != 0 {
		t.Errorf("Write: %v, %d bytes written", err, buf.Len())
	}
}

func TestReadTooLarge(t *testing.T) {
	for _, n := range []uint32{MaxPayload + 1, 1 << 31, 1<<32 - 1} {
		frame := binary.BigEndian.AppendUint32([]byte{byte(TypeData)}, n)
		if _, _, err := NewReader(bytes.NewReader(frame)).Next(); !errors.Is(err, ErrFrameTooLarge) {
			t.Errorf("%d bytes announced: %v", n, err)
		}
	}
}

func TestReadCutOff(t *testing.T) {
	var buf bytes.Buffer
	if err := NewWriter(&buf).Write(TypeData, make([]byte, readStep+100)); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, headerLen - 1, headerLen, headerLen + 1, headerLen + readStep, buf.Len() - 1} {
		if _, _, err := NewReader(bytes.NewReader(buf.Bytes()[:n])).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut off after %d bytes: %v", n, err)
		}
	}
}

// TestAnnouncedLengthCostsNothing checks that a peer has to send bytes to make
// this side take memory for them.
func TestAnnouncedLengthCostsNothing(t *testing.T) {
	frame := binary.BigEndian.AppendUint32([]byte{byte(TypeData)}, MaxPayload)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 16
	for range n {
		_, _, _ = NewReader(bytes.NewReader(frame)).Next()
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > n*2*readStep {
		t.Errorf("%d announced frames took %d KiB", n, used>>10)
	}
}

func FuzzReader(f *testing.F) {
	var buf bytes.Buffer
	w := NewWriter(&buf)
	_ = w.Write(TypeHandshake, (&Handshake{Version: Version, Op: OpHello}).Append(nil))
	_ = w.Write(TypeData, []byte("data"))
	_ = w.Write(TypeEOF)
	f.Add(buf.Bytes())
	f.Add([]byte{4, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{4, 0, 0, 0, 9, 1, 2})
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		var again bytes.Buffer
		w := NewWriter(&again)
		for {
			typ, p, err := r.Next()
			if err != nil {
				if !bytes.HasPrefix(stream, again.Bytes()) {
					t.Errorf("frames read are not those sent")
				}
				if err == io.EOF && again.Len() != len(stream) {
					t.Errorf("%d of %d bytes were frames, and io.EOF", again.Len(), len(stream))
				}
				return
			}
			if len(p) > MaxPayload {
				t.Fatalf("payload of %d bytes", len(p))
			}
			if err := w.Write(typ, p); err != nil {
				t.Fatal(err)
			}
		}
	})
}
