package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
)

// fakeMachine writes down what it is asked, and fails at failAt.
type fakeMachine struct {
	mu     sync.Mutex
	calls  []string
	failAt string
	clock  time.Time
	pool   []byte
	slow   time.Duration // how long the clock takes to set, the first time
}

func (m *fakeMachine) note(call string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, call)
	if call == m.failAt {
		return errors.New(call + " failed")
	}
	return nil
}

func (m *fakeMachine) SetClock(t time.Time) error {
	m.clock = t
	time.Sleep(m.slow)
	m.slow = 0
	return m.note("clock")
}
func (m *fakeMachine) AddEntropy(b []byte) error  { m.pool = b; return m.note("entropy") }
func (m *fakeMachine) SetHostname(n string) error { return m.note("hostname " + n) }
func (m *fakeMachine) NewBootID() error           { return m.note("boot id") }
func (m *fakeMachine) Stop(reboot bool) error {
	if reboot {
		return m.note("reboot")
	}
	return m.note("poweroff")
}

func identity(n byte) client.Identity {
	id := client.Identity{Generation: client.Generation{n}, Entropy: make([]byte, 32), WallClock: time.Now()}
	rand.Read(id.Entropy)
	return id
}

func TestRenewGatesGenerations(t *testing.T) {
	m := &fakeMachine{}
	path := serveSocket(t, agent.Options{Machine: m})
	ctx := within(t, 20*time.Second)
	parent := client.New(dialer(path))
	if err := parent.CommandContext(ctx, "true").Run(); err != nil {
		t.Fatalf("before any renewal: %v", err)
	}
	child := client.New(dialer(path), client.WithGeneration(client.Generation{7}))
	refuses := func(c *client.Client, why string) {
		t.Helper()
		if err := c.CommandContext(ctx, "true").Run(); !errors.Is(err, client.ErrGeneration) {
			t.Errorf("%s: exec: %v, want ErrGeneration", why, err)
		}
		if _, err := c.FS().Stat("/"); !errors.Is(err, client.ErrGeneration) {
			t.Errorf("%s: stat: %v, want ErrGeneration", why, err)
		}
		if err := c.PowerOff(ctx); !errors.Is(err, client.ErrGeneration) {
			t.Errorf("%s: poweroff: %v, want ErrGeneration", why, err)
		}
	}
	refuses(child, "a fork that was not renewed")
	id := identity(7)
	reply, err := child.Renew(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if reply.Generation != id.Generation || len(reply.Random) != 16 || time.Since(reply.WallClock).Abs() > time.Minute {
		t.Errorf("reply %+v", reply)
	}
	if !m.clock.Equal(id.WallClock) || !bytes.Equal(m.pool, id.Entropy) {
		t.Errorf("machine got clock %v, %d bytes", m.clock, len(m.pool))
	}
	if err := child.CommandContext(ctx, "true").Run(); err != nil {
		t.Errorf("after renewal: %v", err)
	}
	refuses(parent, "the old generation")
	if info, err := parent.Hello(ctx); err != nil || info.Generation != id.Generation || info.Version != proto.Version {
		t.Errorf("hello of the old generation: %+v, %v", info, err)
	}
	again, err := child.Renew(ctx, identity(8))
	if err != nil || bytes.Equal(again.Random, reply.Random) {
		t.Errorf("second renewal: %+v, %v", again, err)
	}
}

// TestRenewSetsTheClockAgain has an exchange take so long that the clock that it
// sets is late.
func TestRenewSetsTheClockAgain(t *testing.T) {
	const slow = 700 * time.Millisecond
	m := &fakeMachine{slow: slow}
	c := client.New(dialer(serveSocket(t, agent.Options{Machine: m})))
	id := identity(7)
	id.WallClock = time.Time{}
	begin := time.Now()
	if _, err := c.Renew(within(t, 20*time.Second), id); err != nil {
		t.Fatal(err)
	}
	if m.clock.Before(begin.Add(slow)) {
		t.Errorf("the clock is set to %v after the call, which took longer than %v", m.clock.Sub(begin), slow)
	}
	if err := c.CommandContext(within(t, 20*time.Second), "true").Run(); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// TestRenewFailsClosed checks that a machine answers to its new generation
// only if all of its identity was renewed.
func TestRenewFailsClosed(t *testing.T) {
	for _, step := range []string{"entropy", "clock", "boot id"} {
		path := serveSocket(t, agent.Options{Machine: &fakeMachine{failAt: step}})
		c := client.New(dialer(path))
		if _, err := c.Renew(within(t, 20*time.Second), identity(7)); err == nil {
			t.Errorf("%s failed and Renew did not", step)
		}
		c.SetGeneration(client.Generation{7})
		if err := c.Command("true").Run(); !errors.Is(err, client.ErrGeneration) {
			t.Errorf("%s failed, and exec: %v", step, err)
		}
	}
}

func TestRenewBadRequests(t *testing.T) {
	m := &fakeMachine{}
	c := serve(t, agent.Options{Machine: m})
	ctx := within(t, 20*time.Second)
	for name, mod := range map[string]func(*client.Identity){
		"zero generation":  func(i *client.Identity) { i.Generation = client.Generation{} },
		"little entropy":   func(i *client.Identity) { i.Entropy = i.Entropy[:31] },
		"too much entropy": func(i *client.Identity) { i.Entropy = make([]byte, 1<<16) },
		"clock of 1969":    func(i *client.Identity) { i.WallClock = time.Unix(-1, 0) },
		"long host name":   func(i *client.Identity) { i.Hostname = string(make([]byte, 65)) },
	} {
		id := identity(7)
		mod(&id)
		if _, err := c.Renew(ctx, id); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if len(m.calls) != 0 {
		t.Errorf("machine was asked %q", m.calls)
	}
}

func TestMachineOperations(t *testing.T) {
	m := &fakeMachine{}
	c := serve(t, agent.Options{Machine: m})
	ctx := within(t, 20*time.Second)
	if err := errors.Join(
		c.SetClock(ctx, time.Now()), c.AddEntropy(ctx, make([]byte, 8)), c.SetHostname(ctx, "h"),
		c.PowerOff(ctx), c.Reboot(ctx),
	); err != nil {
		t.Fatal(err)
	}
	// Power operations answer before they act.
	deadline := time.Now().Add(5 * time.Second)
	want := []string{"clock", "entropy", "hostname h", "poweroff", "reboot"}
	for {
		m.mu.Lock()
		got := slices.Clone(m.calls)
		m.mu.Unlock()
		slices.Sort(got)
		slices.Sort(want)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("machine was asked %q", got)
		}
	}
}

func TestOrdinaryProcessLeavesItsHostAlone(t *testing.T) {
	c := serve(t, agent.Options{})
	ctx := within(t, 20*time.Second)
	_, err := c.Renew(ctx, identity(1))
	for op, err := range map[string]error{
		"renew": err, "clock": c.SetClock(ctx, time.Now()), "entropy": c.AddEntropy(ctx, []byte{1}),
		"hostname": c.SetHostname(ctx, "x"), "poweroff": c.PowerOff(ctx), "reboot": c.Reboot(ctx),
	} {
		if !errors.Is(err, client.ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", op, err)
		}
	}
}

// TestAddEntropy credits entropy to this machine's generator, which does it no
// harm: the one operation on the machine that can be tried on a host.
func TestAddEntropy(t *testing.T) {
	if os.Getuid() != 0 {
		lacks(t, "root, to credit entropy")
	}
	b := make([]byte, 64)
	rand.Read(b)
	if err := agent.ThisMachine.AddEntropy(b); err != nil {
		t.Error(err)
	}
	if err := agent.ThisMachine.AddEntropy(make([]byte, proto.MaxEntropy+1)); err == nil {
		t.Error("more entropy than fits was taken")
	}
}

func TestReadReady(t *testing.T) {
	var buf bytes.Buffer
	want := proto.Info{Version: proto.Version, Kernel: "6.12", CPUs: 2, Boot: proto.Boot{Start: 1, Listening: 4}, Warnings: []string{"w"}}
	if err := proto.NewWriter(&buf).WriteValue(proto.TypeReady, want); err != nil {
		t.Fatal(err)
	}
	got, err := client.ReadReady(&buf)
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(got)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("ReadReady = %s, %v", b, err)
	}
	buf.Reset()
	_ = proto.NewWriter(&buf).WriteValue(proto.TypeReady, proto.Info{Version: 99})
	if _, err := client.ReadReady(&buf); !errors.Is(err, client.ErrVersion) {
		t.Errorf("another version: %v", err)
	}
	buf.Reset()
	refusal := &proto.Error{Code: proto.CodeBoot, Message: "disk data: mount as ext4", Errno: int(syscall.EUCLEAN)}
	if err := proto.NewWriter(&buf).WriteValue(proto.TypeError, refusal); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ReadReady(&buf); !errors.Is(err, client.ErrBoot) || !errors.Is(err, syscall.EUCLEAN) || !strings.Contains(err.Error(), "disk data") {
		t.Errorf("an agent that gave up: %v", err)
	}
	if _, err := client.ReadReady(bytes.NewReader([]byte{1, 0, 0, 0, 0})); !errors.Is(err, client.ErrProtocol) {
		t.Errorf("another frame: %v", err)
	}
	if _, err := client.ReadReady(bytes.NewReader(nil)); !errors.Is(err, io.EOF) {
		t.Errorf("nothing: %v", err)
	}
}

// breaking is a listener whose connections break instead of ending, as those
// of a machine do that was forked.
type breaking struct {
	net.Listener
	mu    sync.Mutex
	conns []*breakingConn
}

type breakingConn struct {
	net.Conn
	broken context.Context
	brk    context.CancelCauseFunc
}

func (l *breaking) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b := &breakingConn{Conn: c}
	b.broken, b.brk = context.WithCancelCause(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, b)
	return b, nil
}

// reset breaks all connections with err.
func (l *breaking) reset(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.brk(err)
		c.Close()
	}
}

func (c *breakingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && c.broken.Err() != nil {
		err = context.Cause(c.broken)
	}
	return n, err
}
