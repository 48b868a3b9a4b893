// Command page writes docs/benchmarks.md and its plots from recorded results.
// What is said there by hand is in a template; numbers come from the results.
//
//	make bench ARGS="--json --record test/bench/results"
//	go run ./test/bench/page
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

func main() {
	var (
		results = flag.String("results", "test/bench/results", "`folder` of recorded results")
		source  = flag.String("template", "test/bench/page/benchmarks.md.tmpl", "the page's template `file`")
		docs    = flag.String("docs", "docs", "`folder` to write to")
	)
	flag.Parse()
	if err := run(*results, *source, *docs); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

func run(results, source, docs string) error {
	d, err := readResults(results)
	if err != nil {
		return err
	}
	if err := d.plot(filepath.Join(docs, "plots")); err != nil {
		return err
	}
	page, err := d.page(source)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, "benchmarks.md"), page, 0o644)
}

// page fills the template.
func (d *data) page(source string) ([]byte, error) {
	t, err := template.New(filepath.Base(source)).Option("missingkey=error").Funcs(template.FuncMap{
		"host": d.host, "table": d.table, "ms": d.ms, "kib": d.kib, "ratio": d.ratio, "floor": d.floorTable, "has": d.has, "goals": d.goalTable,
	}).ParseFiles(source)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, nil); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
