package demo

import (
	"encoding/json"
	"fmt"
	"net"
	"testing"
	"time"
)

// ask asks a counter as a look does.
func ask(t *testing.T, c *counter, after int) sighting {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	go c.answer(server)
	if err := client.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(client, after); err != nil {
		t.Fatal(err)
	}
	var s sighting
	if err := json.NewDecoder(client).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCounterRemembersAndGoesOn(t *testing.T) {
	c := newCounter()
	go c.run()
	first := ask(t, c, 0)
	if first.count() < 1 {
		t.Fatalf("asked for more than 0 ticks, got %d", first.count())
	}
	second := ask(t, c, first.count()+2)
	if second.count() <= first.count()+2 {
		t.Errorf("asked for more than %d ticks, got %d", first.count()+2, second.count())
	}
	if n := commonTicks(first.History, second.History); n != first.count() {
		t.Errorf("only %d of the first %d ticks are in the later history", n, first.count())
	}
}

func TestCountersHaveNothingInCommon(t *testing.T) {
	a, b := newCounter(), newCounter()
	go a.run()
	go b.run()
	if n := commonTicks(ask(t, a, 2).History, ask(t, b, 2).History); n != 0 {
		t.Errorf("two counters share %d ticks", n)
	}
}

func TestGuestRefusesOtherWords(t *testing.T) {
	for _, args := range [][]string{nil, {"dance"}, {"look", "up"}} {
		if err := Guest(args, nil); err == nil {
			t.Errorf("Guest(%q) did not fail", args)
		}
	}
}
