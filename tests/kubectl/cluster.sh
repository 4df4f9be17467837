#!/usr/bin/env bash
# What a person finds with kubectl in a cluster that `midflight up` made, and that every example applies there.
# Called like script.sh beside it; EXAMPLES is the folder of the examples.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/kubectl/checks.bash
source "$here/checks.bash"
l() { k --namespace longhorn-system "$@"; }

has "$(k get nodes)" "node-2 +Ready" "nodes are ready"
has "$(k -n kube-node-lease get leases -o name)" "lease.coordination.k8s.io/node-1" "nodes hold leases"
has "$(k get namespace longhorn-system)" "Active" "the namespace is there"
is "$(l get settings concurrent-automatic-engine-upgrade-per-node-limit -o jsonpath='{.value}')" "0" "every setting has its default"
has "$(l get settings)" "start-pre-pull-manager-images +" "settings are listed"
is "$(l get lhs -o name | wc -l)" "$(l get settings.longhorn.io -o name | wc -l)" "short names work"
has "$(k api-resources --api-group=longhorn.io)" "volumes +lhv +longhorn.io/v1beta2" "api-resources of Longhorn's kinds"
has "$(k explain volumes.spec.numberOfReplicas --api-version=longhorn.io/v1beta2)" "FIELD: numberOfReplicas" "explain a field of a volume"

for example in "$EXAMPLES"/*.yaml; do
    has "$(k apply -f "$example" 2>&1)" "created|configured|unchanged" "apply $(basename "$example")"
    has "$(k apply --server-side --force-conflicts -f "$example")" "serverside-applied" "apply --server-side $(basename "$example")"
done
is "$(k get juicefsruntime jfsdemo -o jsonpath='{.spec.fuse.updateStrategy}')" "OnIdle" "the runtime of seed 003"
is "$(l get dataengineupgrademanager upgrade -o jsonpath='{.spec.dataEngine}')" "v2" "the manager of seed 004"
is "$(l get setting start-pre-pull-manager-images -o jsonpath='{.value}')" "true" "the setting of seed 001"

l apply -f - >/dev/null <<'YAML'
apiVersion: longhorn.io/v1beta2
kind: Volume
metadata: {name: vol-1}
spec: {size: "1073741824", numberOfReplicas: 2, frontend: nbd, dataEngine: v2}
YAML
has "$(l get lhv)" "vol-1" "a volume with frontend nbd is taken"
refused "spec.frontend.*Unsupported value" "a frontend that is none is refused" \
    l patch volume.longhorn.io vol-1 --type=merge -p '{"spec":{"frontend":"usb"}}'
