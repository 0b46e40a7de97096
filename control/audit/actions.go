package audit

// Action is what was done, as records name it. For what was refused it is the request: "GET /heddle/v1/audit".
type Action string

// Actions. [Actions] lists them all, and docs/reference/access.md with it.
const (
	Apply              Action = "apply"
	Put                Action = "put"
	Delete             Action = "delete"
	Sign               Action = "sign"
	CreateToken        Action = "token.create"
	RevokeToken        Action = "token.revoke"
	CreateJoinToken    Action = "jointoken.create"
	JoinCluster        Action = "cluster.join"
	JoinMesh           Action = "mesh.join"
	RotateIntermediate Action = "intermediate.rotate"
	RequestRoot        Action = "root.request"
	InstallRoot        Action = "root.install"
	RotateRoot         Action = "root.rotate"
	AbortRoot          Action = "root.abort"
	TrustRoot          Action = "root.trust"
	SignByRoot         Action = "root.sign"
	RetireRoot         Action = "root.retire"
	FinishRoot         Action = "root.finish"
	ForgetRoot         Action = "root.forget"
	RotateSecrets      Action = "secrets.rotate"
	DiscardBatch       Action = "batch.discard"
	TakeBackup         Action = "backup"
	RestoreBackup      Action = "restore"
	RotateWorkload     Action = "rotate"
	UseProxyAdmin      Action = "proxy.admin"
	// CommandAgent is followed by what the agent was told: "agent.replicas".
	CommandAgent Action = "agent."
)

// Actions are all actions that a record can have which is no refusal, in the order of the reference.
var Actions = []Action{
	Apply, Put, Delete, Sign, CreateToken, RevokeToken, CreateJoinToken, JoinCluster, JoinMesh, RotateIntermediate, RequestRoot, InstallRoot,
	RotateRoot, AbortRoot, TrustRoot, SignByRoot, RetireRoot, FinishRoot, ForgetRoot, RotateSecrets, DiscardBatch, TakeBackup, RestoreBackup,
	RotateWorkload, UseProxyAdmin, CommandAgent,
}
