package server

import (
	"github.com/forkvm/forkvm/api"
)

func (c *call) sharing() (any, error) {
	ids := c.query["id"]
	if len(ids) > api.MaxSharing {
		return nil, api.Errorf(api.BadRequest, "query: id: is there %d times, at most %d are compared", len(ids), api.MaxSharing)
	}
	for _, id := range ids {
		if err := api.CheckID(api.SandboxPrefix, id); err != nil {
			return nil, err
		}
	}
	return c.svc.Sharing(c.ctx(), api.SharingQuery{SandboxIDs: ids})
}
