package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkvm/forkvm/api/internal/wire"
)

// aborted is the status in logs and metrics of requests that were not answered
// to the end: who asked went away, or the answer broke off.
const aborted = 499

var requestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// record is what is told of a request when it has ended.
type record struct {
	start time.Time
	id    string
	route string // as in the mux; empty: none
	team  string
	err   error
}

// response remembers the status that was written.
type response struct {
	http.ResponseWriter
	rec    *record
	status int
}

// Unwrap is for [http.ResponseController].
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) started() bool { return w.status != 0 }

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	underWay prometheus.Gauge
}

func newMetrics(reg *prometheus.Registry) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkvm_http_requests_total", Help: "Requests that have ended.",
		}, []string{"method", "route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkvm_http_request_duration_seconds", Help: "How long requests took, streams included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}, []string{"method", "route"}),
		underWay: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "forkvm_http_requests_under_way", Help: "Requests, streams included, that have not ended.",
		}),
	}
	reg.MustRegister(m.requests, m.duration, m.underWay)
	return m
}

func (s *server) begin(w http.ResponseWriter, r *http.Request) *record {
	rec := &record{start: time.Now(), id: r.Header.Get(wire.RequestID)}
	if !requestID.MatchString(rec.id) {
		rec.id = rand.Text()
	}
	w.Header().Set(wire.RequestID, rec.id)
	s.metrics.underWay.Inc()
	return rec
}

// end is deferred: it takes panics.
func (s *server) end(w *response, r *http.Request) {
	p := recover()
	if p != nil && p != http.ErrAbortHandler {
		s.Logger.Error("panic", "request_id", w.rec.id, "route", w.rec.route, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		if w.started() {
			p = http.ErrAbortHandler
		} else {
			newAnswer(0, nil, fmt.Errorf("server: panic: %v", p)).write(w)
			p = nil
		}
	}
	status := w.status
	if p != nil {
		status = aborted
	}
	s.account(w.rec, r, status)
	if p != nil {
		panic(p)
	}
}

func (s *server) account(rec *record, r *http.Request, status int) {
	took := time.Since(rec.start)
	method, route, ok := strings.Cut(rec.route, " ")
	if !ok {
		method, route = "", "" // names of methods that are none would be without bounds
	}
	s.metrics.underWay.Dec()
	s.metrics.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	s.metrics.duration.WithLabelValues(method, route).Observe(took.Seconds())
	level := slog.LevelInfo
	if status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{
		slog.String("request_id", rec.id), slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.String("team", rec.team), slog.Int("status", status), slog.Duration("took", took),
	}
	if rec.err != nil {
		attrs = append(attrs, slog.String("err", rec.err.Error()))
	}
	s.Logger.LogAttrs(context.WithoutCancel(r.Context()), level, "request", attrs...)
}
