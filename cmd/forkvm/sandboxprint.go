package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/forkvm/forkvm/api"
)

func printBoxes(w io.Writer, boxes []api.Sandbox) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tNAME\tSTATE\tFROM\tCREATED\tENDS\tMEMORY")
	for _, b := range boxes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", shortID(b.ID), plain(b.Name), b.State, origin(&b), humanize.Time(b.CreatedAt), ends(&b), size(b.MemoryBytes))
	}
	return t.Flush()
}

// plain is a name without what would break a table or drive a terminal.
func plain(name string) string {
	q := fmt.Sprintf("%q", name)
	if q[1:len(q)-1] == name {
		return name
	}
	return q
}

// origin is what a sandbox was made from.
func origin(b *api.Sandbox) string {
	switch {
	case b.ParentSandboxID != nil:
		return shortID(*b.ParentSandboxID)
	case b.SourceSnapshotID != nil:
		return shortID(*b.SourceSnapshotID)
	}
	return b.Template
}

// ends is when a sandbox is paused or destroyed by itself.
func ends(b *api.Sandbox) string {
	switch {
	case b.ExpiresAt != nil:
		return fmt.Sprintf("%s, %s", b.OnTimeout, humanize.Time(*b.ExpiresAt))
	case b.AutoDeleteAt != nil:
		return "destroy, " + humanize.Time(*b.AutoDeleteAt)
	}
	return "never"
}

// details prints lines of a name and what there is to say.
type details struct{ *tabwriter.Writer }

func newDetails(w io.Writer) details { return details{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (d details) line(name, format string, args ...any) {
	fmt.Fprintf(d, name+"\t"+format+"\n", args...)
}

func (d details) time(name string, t *time.Time) {
	if t != nil {
		d.line(name, "%s (%s)", t.Local().Format(time.RFC3339), humanize.Time(*t))
	}
}

func (d details) pairs(name string, m map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		d.line(name, "%s=%s", plain(k), plain(m[k]))
	}
}

func (d details) text(name string, s *string) {
	if s != nil {
		d.line(name, "%s", *s)
	}
}

func (d details) limits(timeout *int64, then api.OnTimeout, autoDelete *int64) {
	if timeout != nil {
		d.line("time-out", "%v, then %s", time.Duration(*timeout)*time.Second, then)
	}
	if autoDelete != nil {
		d.line("auto-delete", "after being paused for %v", time.Duration(*autoDelete)*time.Second)
	}
}

func printBox(w io.Writer, b *api.Sandbox) error {
	d := newDetails(w)
	d.line("id", "%s", b.ID)
	d.line("name", "%s", plain(b.Name))
	d.line("state", "%s", b.State)
	if b.Reason != "" {
		d.line("reason", "%s", plain(b.Reason))
	}
	d.line("template", "%s", b.Template)
	d.text("forked from", b.ParentSandboxID)
	d.text("snapshot", b.SourceSnapshotID)
	d.line("machine", "%d virtual CPUs, %s of memory, disk of %s", b.VCPUs, size(b.MemoryBytes), size(b.DiskBytes))
	d.time("created", &b.CreatedAt)
	d.time("started", b.StartedAt)
	d.time("paused", b.PausedAt)
	d.limits(b.TimeoutSeconds, b.OnTimeout, b.AutoDeleteSeconds)
	d.time("ends", b.ExpiresAt)
	d.time("is deleted", b.AutoDeleteAt)
	d.pairs("metadata", b.Metadata)
	d.pairs("env", b.EnvVars)
	d.line("token", "%s", b.AccessToken)
	return d.Flush()
}

func printSnaps(w io.Writer, snaps []api.Snapshot) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tNAME\tSANDBOX\tTEMPLATE\tCREATED\tMEMORY\tSTORED")
	for _, s := range snaps {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", shortID(s.ID), plain(s.Name), shortID(s.SandboxID), s.Template,
			humanize.Time(s.CreatedAt), size(s.MemoryBytes), size(s.StoredBytes))
	}
	return t.Flush()
}

func printSnap(w io.Writer, s *api.Snapshot) error {
	d := newDetails(w)
	d.line("id", "%s", s.ID)
	d.line("name", "%s", plain(s.Name))
	d.line("sandbox", "%s", s.SandboxID)
	d.line("template", "%s", s.Template)
	d.time("created", &s.CreatedAt)
	d.line("machine", "%d virtual CPUs, %s of memory, disk of %s", s.VCPUs, size(s.MemoryBytes), size(s.DiskBytes))
	d.line("stored", "%s", size(s.StoredBytes))
	d.line("pause", "%.1f ms", 1000*s.PauseSeconds)
	d.limits(s.TimeoutSeconds, s.OnTimeout, s.AutoDeleteSeconds)
	d.pairs("metadata", s.Metadata)
	return d.Flush()
}
