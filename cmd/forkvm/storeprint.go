package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/forkvm/forkvm/snapshot"
)

// summary is a snapshot in JSON where it is not shown in full. Its fields are
// those of [snapshot.Info] and mean the same.
type summary struct {
	ID      string          `json:"id"`
	Label   string          `json:"label,omitempty"`
	Parent  string          `json:"parent,omitempty"`
	Created time.Time       `json:"created,omitzero"`
	Kernel  snapshot.Kernel `json:"kernel,omitzero"`
	Logical int64           `json:"logical,omitzero"`
	Stored  int64           `json:"stored,omitzero"`
	Unique  int64           `json:"unique,omitzero"`
	Error   string          `json:"error,omitempty"` // why it cannot be read; only the id is known then
}

const summaryHelp = `JSON has for each snapshot id, label, parent, created, kernel, the sizes logical,
stored and unique in bytes, and of one that cannot be read only id and error.
`

func summarize(info snapshot.Info) summary {
	s := summary{
		ID: info.ID, Label: info.Label, Parent: info.Parent, Created: info.Created, Kernel: info.Kernel,
		Logical: info.Logical, Stored: info.Stored, Unique: info.Unique,
	}
	if info.Err != nil {
		s.Error = info.Err.Error()
	}
	return s
}

// printStored prints a snapshot that was just made.
func printStored(w io.Writer, info snapshot.Info, asJSON bool) error {
	if asJSON {
		return printJSON(w, summarize(info))
	}
	_, err := fmt.Fprintln(w, info.ID)
	return err
}

// short is an id as people read it: more than enough to tell it from others.
func short(id string) string { return id[:min(len(id), 12)] }

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

func printList(w io.Writer, infos []snapshot.Info) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tLABEL\tCREATED\tPARENT\tLOGICAL\tSTORED\tUNIQUE")
	for _, i := range infos {
		if i.Err != nil {
			fmt.Fprintf(t, "%s\t%v\n", short(i.ID), i.Err)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", short(i.ID), i.Label, humanize.Time(i.Created),
			short(i.Parent), size(i.Logical), size(i.Stored), size(i.Unique))
	}
	return t.Flush()
}

func printDetails(w io.Writer, i snapshot.Info) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	line("id", "%s", i.ID)
	line("label", "%s", i.Label)
	line("parent", "%s", i.Parent)
	line("created", "%s (%s)", i.Created.Local().Format(time.RFC3339), humanize.Time(i.Created))
	line("kernel", "%s", i.Kernel.Version)
	line("size", "%s, stored %s, of which %s shared with no other", size(i.Logical), size(i.Stored), size(i.Unique))
	line("made on", "%s family %d model %d stepping %d", i.Needs.Vendor, i.Needs.Family, i.Needs.Model, i.Needs.Stepping)
	line("needs", "%d virtual CPUs, %s of memory", i.Needs.VCPUs, size(i.Needs.Memory))
	for _, c := range i.Needs.Capabilities {
		line("", "%s", c)
	}
	for _, d := range i.Disks {
		line("disk", "%s of %s", d.Name, size(d.Size))
	}
	for _, l := range i.Layers {
		line("layer", "%s, %s of %s", l.Sum, size(l.Data), size(l.Size))
	}
	for _, s := range i.Sections {
		line("state", "%s, %s", s.Name, size(s.Size))
	}
	return t.Flush()
}
