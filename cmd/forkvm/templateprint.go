package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/forkvm/forkvm/api/template"
)

func printTemplates(w io.Writer, infos []template.Info) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tFROM\tCREATED\tMEMORY\tDISK\tSTORED")
	for _, i := range infos {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.From, humanize.Time(i.Created), size(i.Memory), size(i.Disk), size(i.Stored))
	}
	return t.Flush()
}

func printTemplate(w io.Writer, i template.Info) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	line("name", "%s", i.Name)
	if i.Parent != "" {
		line("from", "%s, a template, which was snapshot %s", i.From, i.Parent)
	} else {
		line("from", "%s, an image of %s", i.From, size(i.Base))
	}
	line("created", "%s (%s), in %.1f s", i.Created.Local().Format(time.RFC3339), humanize.Time(i.Created), i.BuildSeconds)
	line("snapshot", "%s, stored %s", i.Snapshot, size(i.Stored))
	line("key", "%s", i.Key)
	line("machine", "%d virtual CPUs, %s of memory, disk of %s", i.VCPUs, size(i.Memory), size(i.Disk))
	line("kernel", "%s", i.Kernel)
	line("workdir", "%s", i.Config.Workdir)
	line("user", "%s", i.Config.User)
	line("command", "%s", strings.Join(i.Config.Cmd, " "))
	for _, e := range i.Config.Env {
		line("env", "%s", e)
	}
	line("log", "%s", i.Log)
	for l := range strings.Lines(i.Source) {
		line("source", "%s", strings.TrimSuffix(l, "\n"))
	}
	return t.Flush()
}
