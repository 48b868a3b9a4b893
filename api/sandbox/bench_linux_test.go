package sandbox

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
)

// BenchmarkExec runs a short command in this process and over HTTP on the
// loopback, in turns. The part of HTTP is the difference of the medians; beside
// it, what a request takes of which a server of net/http only reads the body.
func BenchmarkExec(b *testing.B) {
	e := linuxEngine(b, Options{})
	own, remote := e.Team("http"), overHTTP(b, e)(nil) // the same team
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
	bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))
	defer bare.Close()
	var bares []time.Duration
	echo := func() {
		begin := time.Now()
		r, err := http.Post(bare.URL, "application/json", strings.NewReader(`{"argv":["echo","hello"]}`))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
		bares = append(bares, time.Since(begin))
	}
	for range 3 {
		exec(own)
		exec(remote)
		echo()
	}
	clear(times)
	for b.Loop() {
		exec(own)
		exec(remote)
		echo()
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds())
	}
	b.ReportMetric(median(times[own]), "in-process-p50-µs")
	b.ReportMetric(median(times[remote]), "http-p50-µs")
	b.ReportMetric(median(times[remote])-median(times[own]), "http-adds-µs")
	b.ReportMetric(median(bares), "bare-http-p50-µs")
	b.ReportMetric(0, "ns/op")
}
