package sandbox

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkvm/forkvm/api"
)

func TestMetrics(t *testing.T) {
	r := newRig(t, Limits{Memory: 2 * 64 << 20})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	must[*api.ForkResult](t)(r.Fork(ctx, b.ID, api.ForkRequest{}))
	_, err := r.Fork(ctx, b.ID, api.ForkRequest{})
	wantCode(t, err, api.OutOfCapacity)
	must[*api.Template](t)(r.BuildTemplate(ctx, web, nil, nil))
	_, err = r.BuildTemplate(ctx, api.BuildRequest{}, nil, nil)
	wantCode(t, err, api.BadRequest)
	wantCode(t, r.DeleteTemplate(ctx, "base"), api.Conflict)
	if err := r.DeleteTemplate(ctx, web.Name); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(r.Engine); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{
		"forkvm_sandboxes running": 2, "forkvm_sandboxes paused": 0, "forkvm_guest_memory_bytes": 2 * 64 << 20,
		"forkvm_capture_pause_seconds": 1, "forkvm_sandbox_operation_seconds create": 1,
		"forkvm_sandbox_operations_failed_total out_of_capacity fork": 1,
		"forkvm_sandbox_operation_seconds build":                      1, "forkvm_sandbox_operation_seconds delete_template": 1,
		"forkvm_sandbox_operations_failed_total bad_request build":        1,
		"forkvm_sandbox_operations_failed_total conflict delete_template": 1,
		"forkvm_start_phase_seconds restore":                              2, "forkvm_start_phase_seconds agent": 2,
		"forkvm_guest_memory_private_bytes": 2, "forkvm_guest_memory_shared_bytes": 4,
	} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %v; want %v, of %v", name, got, want, values)
		}
	}
}
