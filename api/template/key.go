package template

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
)

// keyFormat changes when a build of this program makes another machine of the
// same input than one before it did.
const keyFormat = "forkvm template 1"

// key names what a build came to after a step: the sum of all that went into
// it. It is in hexadecimal.
type key string

// keyWriter sums values so that no two lists of them are alike.
type keyWriter struct{ h hash.Hash }

func (k *keyWriter) number(n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	k.h.Write(b[:])
}

func (k *keyWriter) text(list ...string) {
	k.number(int64(len(list)))
	for _, s := range list {
		k.number(int64(len(s)))
		io.WriteString(k.h, s)
	}
}

func (k *keyWriter) key() key { return key(hex.EncodeToString(k.h.Sum(nil))) }

// ingredients are what a machine is booted from.
type ingredients struct {
	kernel, initramfs, base string // sums; base is empty where there is no disk
	cmdline                 string
	vcpus                   int
	memory, disk            int64 // bytes
}

func (i ingredients) key() key {
	k := &keyWriter{sha256.New()}
	k.text(keyFormat, i.kernel, i.initramfs, i.base, i.cmdline)
	k.number(int64(i.vcpus))
	k.number(i.memory)
	k.number(i.disk)
	return k.key()
}

// parentKey is the key of a machine that was a template's.
func parentKey(snapshot string) key {
	k := &keyWriter{sha256.New()}
	k.text(keyFormat, "template", snapshot)
	return k.key()
}

// after is the key after a step on what has the key k. sum is that of what it
// copies.
func (s step) after(k key, sum string) key {
	w := &keyWriter{sha256.New()}
	w.text(string(k), string(s.kind), s.dir, s.user)
	w.text(s.argv...)
	w.text(s.env...)
	if s.kind != stepRun {
		w.text(s.dest, fmt.Sprint(s.intoDir), s.chown, sum)
	}
	return w.key()
}

// final is the key of a template whose steps came to the key k.
func (p *plan) final(k key, name string) key {
	w := &keyWriter{sha256.New()}
	w.text(string(k), name, p.config.Workdir, p.config.User)
	w.text(p.start...)
	w.text(p.check...)
	w.text(p.config.Env...)
	w.text(p.config.Cmd...)
	return w.key()
}

// keys are the keys after FROM and after each step, and sums of what steps
// copy, "" of those that copy nothing.
func (p *plan) keys(ctx context.Context, c *copyContext, from key) (keys []key, sums []string, err error) {
	keys = []key{from}
	for _, s := range p.steps {
		sum := ""
		if s.kind == stepCopy {
			h := sha256.New()
			if err := c.sum(ctx, s, h); err != nil {
				return nil, nil, fmt.Errorf("template: line %d: COPY: %w: %w", s.line, ErrContext, err)
			}
			sum = hex.EncodeToString(h.Sum(nil))
		}
		from = s.after(from, sum)
		keys, sums = append(keys, from), append(sums, sum)
	}
	return keys, sums, nil
}

// sumFile is the SHA-256 of a file, in hexadecimal.
func sumFile(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, contextReader{ctx, f}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// contextReader fails when ctx ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
