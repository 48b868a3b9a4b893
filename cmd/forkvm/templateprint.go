package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/dustin/go-humanize"

	"github.com/forkvm/forkvm/api"
)

func printTemplates(w io.Writer, list []api.Template) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tFROM\tCREATED\tMEMORY\tDISK\tSTORED")
	for _, i := range list {
		if !i.Ready {
			fmt.Fprintf(t, "%s\t-\tat its first use\t-\t-\t-\n", plain(i.Name))
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", plain(i.Name), plain(i.From), humanize.Time(i.CreatedAt),
			size(i.MemoryBytes), size(i.DiskBytes), size(i.StoredBytes))
	}
	return t.Flush()
}

func printTemplate(w io.Writer, i *api.Template) error {
	d := newDetails(w)
	d.line("name", "%s", plain(i.Name))
	if !i.Ready {
		d.line("created", "at its first use: it is built in")
		return d.Flush()
	}
	d.line("from", "%s", plain(i.From))
	d.time("created", &i.CreatedAt)
	d.line("build", "%.1f s", i.BuildSeconds)
	d.line("stored", "%s", size(i.StoredBytes))
	d.line("machine", "%d virtual CPUs, %s of memory, disk of %s", i.VCPUs, size(i.MemoryBytes), size(i.DiskBytes))
	d.line("kernel", "%s", plain(i.Kernel))
	d.line("workdir", "%s", plain(i.Cwd))
	d.line("user", "%s", plain(i.User))
	d.line("command", "%s", plain(strings.Join(i.Cmd, " ")))
	for _, e := range i.Env {
		d.line("env", "%s", plain(e))
	}
	for l := range strings.Lines(i.File) {
		d.line("source", "%s", strings.Map(printable, l))
	}
	return d.Flush()
}

// printable leaves out of a line what would break a table or drive a terminal.
func printable(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case !unicode.IsPrint(r):
		return -1
	}
	return r
}
