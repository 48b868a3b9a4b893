package sandbox

import (
	"slices"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
)

// BenchmarkExec runs a short command in this process and over HTTP on the
// loopback, in turns. The part of HTTP is the difference of the medians.
func BenchmarkExec(b *testing.B) {
	e := linuxEngine(b, Options{})
	own, http := e.Team("http"), overHTTP(b, e)(nil) // the same team
	s, err := own.Create(b.Context(), api.CreateRequest{Template: workTemplate})
	if err != nil {
		b.Fatal(err)
	}
	request := api.ExecRequest{Command: api.Command{Argv: []string{"echo", "hello"}}}
	times := map[api.Service][]time.Duration{}
	exec := func(service api.Service) {
		begin := time.Now()
		r, err := service.Exec(b.Context(), s.Access(), request)
		if err != nil || string(r.Stdout) != "hello\n" {
			b.Fatal(r, err)
		}
		times[service] = append(times[service], time.Since(begin))
	}
	exec(own)
	exec(http)
	clear(times)
	for b.Loop() {
		exec(own)
		exec(http)
	}
	median := func(service api.Service) float64 {
		d := times[service]
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds())
	}
	b.ReportMetric(median(own), "in-process-p50-µs")
	b.ReportMetric(median(http), "http-p50-µs")
	b.ReportMetric(median(http)-median(own), "http-adds-µs")
	b.ReportMetric(0, "ns/op")
}
