package sandbox

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
)

// BenchmarkExec runs a short command in three ways: in this process; over HTTP
// on the loopback, with client and server; and as little of HTTP as there can
// be, with net/http around the same call. What HTTP adds are the differences of
// the medians. What a guest does when a command has ended falls into the next
// call; so each way comes as often after each.
func BenchmarkExec(b *testing.B) {
	e := linuxEngine(b, Options{})
	own, remote := e.Team("http"), overHTTP(b, e)(nil) // the same team
	s, err := own.Create(b.Context(), api.CreateRequest{Template: workTemplate})
	if err != nil {
		b.Fatal(err)
	}
	request := api.ExecRequest{Command: api.Command{Argv: []string{"echo", "hello"}}}
	least := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request api.ExecRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			b.Error(err)
		}
		result, err := own.Exec(r.Context(), s.Access(), request)
		if err != nil {
			b.Error(err)
		}
		json.NewEncoder(w).Encode(result)
	}))
	defer least.Close()
	ways := []func() (*api.ExecResult, error){
		func() (*api.ExecResult, error) { return own.Exec(b.Context(), s.Access(), request) },
		func() (*api.ExecResult, error) { return remote.Exec(b.Context(), s.Access(), request) },
		func() (*api.ExecResult, error) { return post(least.URL, request) },
	}
	times := make([][]time.Duration, len(ways))
	exec := func(way int) {
		begin := time.Now()
		r, err := ways[way]()
		times[way] = append(times[way], time.Since(begin))
		if err != nil || string(r.Stdout) != "hello\n" {
			b.Fatal(r, err)
		}
	}
	turns := []int{0, 1, 2, 0, 2, 1}
	for range 2 {
		for _, way := range turns {
			exec(way)
		}
	}
	clear(times)
	for b.Loop() {
		for _, way := range turns {
			exec(way)
		}
	}
	median := func(way int) float64 {
		d := times[way]
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds())
	}
	b.ReportMetric(median(0), "in-process-p50-µs")
	b.ReportMetric(median(1), "http-p50-µs")
	b.ReportMetric(median(1)-median(0), "http-adds-µs")
	b.ReportMetric(median(2)-median(0), "least-http-adds-µs")
	b.ReportMetric(0, "ns/op")
}

// post asks for a command as one would who has nothing but net/http.
func post(url string, request api.ExecRequest) (*api.ExecResult, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	answer, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	result := new(api.ExecResult)
	return result, json.NewDecoder(answer.Body).Decode(result)
}
