package httpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/tenant"
)

// ListMembers lists who belongs to the organization.
func (i Identity) ListMembers(ctx context.Context, r api.ListMembersRequestObject) (api.ListMembersResponseObject, error) {
	page, err := pageAfter[ids.User](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.People(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(p tenant.Person) ids.User { return p.User })
	if err != nil {
		return nil, err
	}
	return api.ListMembers200JSONResponse{Body: api.MemberList{Items: each(items, newMemberView)}, Headers: api.ListMembers200ResponseHeaders{Link: link}}, nil
}

func newMemberView(p tenant.Person) api.Member {
	return api.Member{
		UserID: p.User.String(), Email: p.Email, Name: p.Name, Role: orNil(api.Role(p.Role)), Disabled: p.Disabled, JoinedAt: p.JoinedAt,
		Projects: each(p.Projects, func(r tenant.ProjectRole) api.ProjectRole {
			return api.ProjectRole{ProjectID: r.Project.String(), Role: api.Role(r.Role)}
		}),
		GroupIds: each(p.Groups, ids.Group.String),
	}
}

// GetMember reads one member.
func (i Identity) GetMember(ctx context.Context, r api.GetMemberRequestObject) (api.GetMemberResponseObject, error) {
	user, err := idFromPath[ids.User](r.UserID)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.Person(ctx, user)
	if err != nil {
		return nil, err
	}
	return api.GetMember200JSONResponse{Body: newMemberView(found), Headers: api.GetMember200ResponseHeaders{ETag: etag(found.Version)}}, nil
}

// UpdateMember gives a member another role.
func (i Identity) UpdateMember(ctx context.Context, r api.UpdateMemberRequestObject) (api.UpdateMemberResponseObject, error) {
	user, err := idFromPath[ids.User](r.UserID)
	if err != nil {
		return nil, err
	}
	version, err := ifMatch(r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	after, err := i.Tenants.ChangeRole(ctx, user, version, tenant.Role(r.Body.Role))
	if err != nil {
		return nil, err
	}
	return api.UpdateMember200JSONResponse{Body: newMemberView(after), Headers: api.UpdateMember200ResponseHeaders{ETag: etag(after.Version)}}, nil
}

// DeleteMember takes a member out.
func (i Identity) DeleteMember(ctx context.Context, r api.DeleteMemberRequestObject) (api.DeleteMemberResponseObject, error) {
	user, err := idFromPath[ids.User](r.UserID)
	if err != nil {
		return nil, err
	}
	if err := i.Tenants.RemovePerson(ctx, user); err != nil {
		return nil, err
	}
	return api.DeleteMember204Response{}, nil
}

// ListInvitations lists invitations, the newest first.
func (i Identity) ListInvitations(ctx context.Context, r api.ListInvitationsRequestObject) (api.ListInvitationsResponseObject, error) {
	page, err := pageAfter[ids.Invitation](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.Invitations(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(v tenant.Invitation) ids.Invitation { return v.ID })
	if err != nil {
		return nil, err
	}
	return api.ListInvitations200JSONResponse{
		Body: api.InvitationList{Items: each(items, i.newInvitationView)}, Headers: api.ListInvitations200ResponseHeaders{Link: link},
	}, nil
}

func (i Identity) newInvitationView(v tenant.Invitation) api.Invitation {
	return api.Invitation{
		ID: v.ID.String(), Email: v.Email, Role: api.Role(v.Role), ProjectID: orNil(v.Project.String()), State: api.InvitationState(v.State(i.Tenants.Now())),
		InvitedBy: v.InvitedBy, CreatedAt: v.CreatedAt, ExpiresAt: v.ExpiresAt, AcceptedAt: orNil(v.AcceptedAt),
	}
}

// CreateInvitation invites somebody.
func (i Identity) CreateInvitation(ctx context.Context, r api.CreateInvitationRequestObject) (api.CreateInvitationResponseObject, error) {
	project, err := projectFromBody(r.Body.ProjectID)
	if err != nil {
		return nil, err
	}
	made, token, err := i.Tenants.Invite(ctx, r.Body.Email, tenant.Role(r.Body.Role), project)
	if err != nil {
		return nil, err
	}
	view := i.newInvitationView(made)
	view.Token = &token
	return api.CreateInvitation201JSONResponse(view), nil
}

func projectFromBody(id *string) (ids.Project, error) {
	if id == nil {
		return ids.Project{}, nil
	}
	return idFromBody[ids.Project](*id, "/project_id")
}

// DeleteInvitation takes an invitation back.
func (i Identity) DeleteInvitation(ctx context.Context, r api.DeleteInvitationRequestObject) (api.DeleteInvitationResponseObject, error) {
	id, err := idFromPath[ids.Invitation](r.InvitationID)
	if err != nil {
		return nil, err
	}
	if err := i.Tenants.RevokeInvitation(ctx, id); err != nil {
		return nil, err
	}
	return api.DeleteInvitation204Response{}, nil
}

// AcceptInvitation lets somebody in. Tries at one invitation are bounded, since they try a password as well.
func (i Identity) AcceptInvitation(ctx context.Context, r api.AcceptInvitationRequestObject) (api.AcceptInvitationResponseObject, error) {
	if err := i.boundLogIns(ctx, r.Body.Token); err != nil {
		return nil, err
	}
	joined, err := i.Tenants.Join(ctx, tenant.JoinInput{Token: r.Body.Token, Name: orZero(r.Body.Name), Password: r.Body.Password})
	if err != nil {
		return nil, err
	}
	return api.AcceptInvitation201JSONResponse{OrganizationID: joined.Org.String(), Email: joined.Email}, nil
}

// ListGroups lists groups, the newest first.
func (i Identity) ListGroups(ctx context.Context, r api.ListGroupsRequestObject) (api.ListGroupsResponseObject, error) {
	page, err := pageAfter[ids.Group](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.Groups(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(g tenant.Group) ids.Group { return g.ID })
	if err != nil {
		return nil, err
	}
	return api.ListGroups200JSONResponse{Body: api.GroupList{Items: each(items, newGroupView)}, Headers: api.ListGroups200ResponseHeaders{Link: link}}, nil
}

func newGroupView(g tenant.Group) api.Group {
	return api.Group{
		ID: g.ID.String(), Name: g.Name, Role: api.Role(g.Role), ProjectID: orNil(g.Project.String()), UserIds: each(g.People, ids.User.String), CreatedAt: g.CreatedAt,
	}
}

// groupInput reads what a group shall be.
func groupInput(name *string, role *api.Role, users *[]string) (tenant.GroupInput, error) {
	in := tenant.GroupInput{Name: name, Role: (*tenant.Role)(role)}
	if users == nil {
		return in, nil
	}
	people := make([]ids.User, len(*users))
	for n, text := range *users {
		var err error
		if people[n], err = idFromBody[ids.User](text, fmt.Sprintf("/user_ids/%d", n)); err != nil {
			return in, err
		}
	}
	in.People = &people
	return in, nil
}

// CreateGroup makes a group.
func (i Identity) CreateGroup(ctx context.Context, r api.CreateGroupRequestObject) (api.CreateGroupResponseObject, error) {
	in, err := groupInput(&r.Body.Name, &r.Body.Role, r.Body.UserIds)
	if err != nil {
		return nil, err
	}
	project, err := projectFromBody(r.Body.ProjectID)
	if err != nil {
		return nil, err
	}
	made, err := i.Tenants.CreateGroup(ctx, in, project)
	if err != nil {
		return nil, err
	}
	return api.CreateGroup201JSONResponse{Body: newGroupView(made), Headers: api.CreateGroup201ResponseHeaders{ETag: etag(made.Version)}}, nil
}

// GetGroup reads a group.
func (i Identity) GetGroup(ctx context.Context, r api.GetGroupRequestObject) (api.GetGroupResponseObject, error) {
	id, err := idFromPath[ids.Group](r.GroupID)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.Group(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.GetGroup200JSONResponse{Body: newGroupView(found), Headers: api.GetGroup200ResponseHeaders{ETag: etag(found.Version)}}, nil
}

// UpdateGroup changes a group.
func (i Identity) UpdateGroup(ctx context.Context, r api.UpdateGroupRequestObject) (api.UpdateGroupResponseObject, error) {
	id, err := idFromPath[ids.Group](r.GroupID)
	if err != nil {
		return nil, err
	}
	version, err := ifMatch(r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	in, err := groupInput(r.Body.Name, r.Body.Role, r.Body.UserIds)
	if err != nil {
		return nil, err
	}
	after, err := i.Tenants.UpdateGroup(ctx, id, version, in)
	if err != nil {
		return nil, err
	}
	return api.UpdateGroup200JSONResponse{Body: newGroupView(after), Headers: api.UpdateGroup200ResponseHeaders{ETag: etag(after.Version)}}, nil
}

// DeleteGroup takes a group away.
func (i Identity) DeleteGroup(ctx context.Context, r api.DeleteGroupRequestObject) (api.DeleteGroupResponseObject, error) {
	id, err := idFromPath[ids.Group](r.GroupID)
	if err != nil {
		return nil, err
	}
	if err := i.Tenants.DeleteGroup(ctx, id); err != nil {
		return nil, err
	}
	return api.DeleteGroup204Response{}, nil
}

// ListServiceAccounts lists service accounts, the newest first.
func (i Identity) ListServiceAccounts(ctx context.Context, r api.ListServiceAccountsRequestObject) (api.ListServiceAccountsResponseObject, error) {
	page, err := pageAfter[ids.Service](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.ServiceAccounts(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(a tenant.ServiceAccount) ids.Service { return a.ID })
	if err != nil {
		return nil, err
	}
	return api.ListServiceAccounts200JSONResponse{
		Body: api.ServiceAccountList{Items: each(items, newServiceAccountView)}, Headers: api.ListServiceAccounts200ResponseHeaders{Link: link},
	}, nil
}

func newServiceAccountView(a tenant.ServiceAccount) api.ServiceAccount {
	return api.ServiceAccount{
		ID: a.ID.String(), Name: a.Name, Role: api.Role(a.Role), ProjectID: orNil(a.Project.String()), Enabled: a.DisabledAt.IsZero(),
		ExpiresAt: orNil(a.ExpiresAt), CreatedBy: a.CreatedBy, CreatedAt: a.CreatedAt,
	}
}

// CreateServiceAccount makes a service account.
func (i Identity) CreateServiceAccount(ctx context.Context, r api.CreateServiceAccountRequestObject) (api.CreateServiceAccountResponseObject, error) {
	project, err := projectFromBody(r.Body.ProjectID)
	if err != nil {
		return nil, err
	}
	made, err := i.Tenants.CreateServiceAccount(ctx, tenant.ServiceAccountInput{
		Name: &r.Body.Name, Role: (*tenant.Role)(&r.Body.Role), ExpiresAt: inUTC(r.Body.ExpiresAt),
	}, project)
	if err != nil {
		return nil, err
	}
	return api.CreateServiceAccount201JSONResponse{Body: newServiceAccountView(made), Headers: api.CreateServiceAccount201ResponseHeaders{ETag: etag(made.Version)}}, nil
}

func inUTC(at *time.Time) *time.Time {
	if at == nil {
		return nil
	}
	return new(at.UTC().Truncate(time.Microsecond))
}

// GetServiceAccount reads a service account.
func (i Identity) GetServiceAccount(ctx context.Context, r api.GetServiceAccountRequestObject) (api.GetServiceAccountResponseObject, error) {
	id, err := idFromPath[ids.Service](r.ServiceAccountID)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.ServiceAccount(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.GetServiceAccount200JSONResponse{Body: newServiceAccountView(found), Headers: api.GetServiceAccount200ResponseHeaders{ETag: etag(found.Version)}}, nil
}

// UpdateServiceAccount changes a service account.
func (i Identity) UpdateServiceAccount(ctx context.Context, r api.UpdateServiceAccountRequestObject) (api.UpdateServiceAccountResponseObject, error) {
	id, err := idFromPath[ids.Service](r.ServiceAccountID)
	if err != nil {
		return nil, err
	}
	version, err := ifMatch(r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	in := tenant.ServiceAccountInput{Name: r.Body.Name, Role: (*tenant.Role)(r.Body.Role), ExpiresAt: inUTC(r.Body.ExpiresAt), Enabled: r.Body.Enabled}
	if orZero(r.Body.NeverExpires) {
		in.ExpiresAt = &time.Time{}
	}
	after, err := i.Tenants.UpdateServiceAccount(ctx, id, version, in)
	if err != nil {
		return nil, err
	}
	return api.UpdateServiceAccount200JSONResponse{
		Body: newServiceAccountView(after), Headers: api.UpdateServiceAccount200ResponseHeaders{ETag: etag(after.Version)},
	}, nil
}

// DeleteServiceAccount takes a service account away.
func (i Identity) DeleteServiceAccount(ctx context.Context, r api.DeleteServiceAccountRequestObject) (api.DeleteServiceAccountResponseObject, error) {
	id, err := idFromPath[ids.Service](r.ServiceAccountID)
	if err != nil {
		return nil, err
	}
	if err := i.Tenants.DeleteServiceAccount(ctx, id); err != nil {
		return nil, err
	}
	return api.DeleteServiceAccount204Response{}, nil
}
