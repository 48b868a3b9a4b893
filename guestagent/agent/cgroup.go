package agent

import "syscall"

type cgroups struct{}
type cgroup struct{}

func newCgroups(dir string) *cgroups                    { return nil }
func (c *cgroups) get(sys *syscall.SysProcAttr) *cgroup { return nil }
func (c *cgroups) put(g *cgroup)                        {}
func (g *cgroup) kill()                                 {}
