#!/usr/bin/env bash
# Everything that people do with kubectl, one check after the other. Called by tests/kubectl.rs with KUBECTL,
# KUBECONFIG and an empty working folder; prints `ok NAME` per check and stops at the first that fails.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
space=kubectl-$$
# shellcheck source=tests/kubectl/checks.bash
source "$here/checks.bash"
n() { k --namespace "$space" "$@"; }

has "$(k create namespace "$space")" "namespace/$space created" "create namespace"
k apply -f "$here/definition.yaml" >/dev/null
has "$(k wait --for=condition=Established --timeout=20s crd/parcels.kubectl.midflight.dev)" "condition met" "wait for a CRD to be established"
until k api-resources --api-group=kubectl.midflight.dev 2>/dev/null | grep -q parcels; do sleep 0.2; done
# The real server makes the first object of a new kind wait for two seconds; its openapi comes a moment later.
until n explain parcels >/dev/null 2>&1; do sleep 0.2; done

cat >parcel.yaml <<'YAML'
apiVersion: kubectl.midflight.dev/v1
kind: Parcel
metadata:
  name: one
  labels: {color: red}
spec:
  address: Hill Road
  stamps:
  - {name: blue, value: 3}
YAML

# --- apply on the client's side
has "$(n apply -f parcel.yaml)" "parcel.kubectl.midflight.dev/one created" "apply creates"
has "$(n apply -f parcel.yaml)" "unchanged" "apply again changes nothing"
sed -i 's/Hill Road/Dale Road/' parcel.yaml
has "$(n diff -f parcel.yaml || true)" "^\+ +address: Dale Road" "diff shows the change"
has "$(n apply -f parcel.yaml)" "configured" "apply changes"
is "$(n get parcel one -o jsonpath='{.spec.address} {.spec.weight} {.metadata.generation}')" "Dale Road 100 2" "get jsonpath, defaults and generation"
sed 's/address:/adress:/' parcel.yaml >typo.yaml
refused 'unknown field "spec.adress"' "apply refuses an unknown field" n apply -f typo.yaml
sed 's/address: .*/weight: 0/' parcel.yaml >light.yaml
refused "spec.weight.*greater than or equal to 1" "apply refuses what the schema refuses" n apply -f light.yaml

# --- apply on the server's side
has "$(n apply --server-side --field-manager=alice -f - <<'YAML'
apiVersion: kubectl.midflight.dev/v1
kind: Parcel
metadata: {name: two}
spec: {weight: 5, stamps: [{name: blue, value: 1}]}
YAML
)" "serverside-applied" "apply --server-side creates"
cat >bob.yaml <<'YAML'
apiVersion: kubectl.midflight.dev/v1
kind: Parcel
metadata: {name: two}
spec: {weight: 6, stamps: [{name: red, value: 2}]}
YAML
refused 'conflict with "alice": \.spec\.weight' "apply --server-side conflicts" n apply --server-side --field-manager=bob -f bob.yaml
has "$(n apply --server-side --field-manager=bob --force-conflicts -f bob.yaml)" "serverside-applied" "apply --force-conflicts takes over"
is "$(n get parcel two -o jsonpath='{.spec.weight} {.spec.stamps[*].name}')" "6 blue red" "both managers' stamps are there"
has "$(n get parcel two -o yaml --show-managed-fields)" "manager: bob" "managed fields are shown"
has "$(n apply --server-side -f parcel.yaml 2>&1)" "serverside-applied" "server-side apply takes over from client-side"

# --- create, get
has "$(n create configmap settings --from-literal=a=1)" "created" "create configmap"
refused "already exists" "create refuses what exists" n create configmap settings --from-literal=a=1
sed 's/name: one/name: never/' parcel.yaml >never.yaml
is "$(n create -f never.yaml --dry-run=server -o jsonpath='{.metadata.name} {.spec.weight}')" "never 100" "create --dry-run=server shows what the server would make"
refused "not found" "and makes nothing" n get parcel never
has "$(n get parcels)" "NAME +WEIGHT +PHASE +AGE" "get: table"
has "$(n get pcl -o wide)" "NAME +WEIGHT +PHASE +ADDRESS +AGE" "get: wide, short name"
has "$(n get parcels --show-labels)" "color=red" "get --show-labels"
has "$(n get parcel one -o json)" '"kind": "Parcel"' "get: json"
has "$(n get parcels -o name)" "parcel.kubectl.midflight.dev/two" "get: name"
has "$(n get parcels -o custom-columns=N:.metadata.name,W:.spec.weight)" "^two +6" "get: custom columns"
is "$(n get parcels --sort-by=.spec.weight -o name | tr '\n' ' ')" "parcel.kubectl.midflight.dev/two parcel.kubectl.midflight.dev/one " "get --sort-by"
is "$(n get parcels -l color=red -o name)" "parcel.kubectl.midflight.dev/one" "get: label selector"
is "$(n get parcels -l 'color notin (red)' -o name)" "parcel.kubectl.midflight.dev/two" "get: set selector"
is "$(n get parcels --field-selector metadata.name=two -o name)" "parcel.kubectl.midflight.dev/two" "get: field selector"
is "$(n get parcels --chunk-size=1 -o name | wc -l)" "2" "get: pages"
has "$(k get parcels -A)" "$space +one" "get: all namespaces"
refused "NotFound|not found" "get of what is missing" n get parcel none
has "$(n get all)" "parcel.kubectl.midflight.dev/one" "get all finds the category"
n get parcels -w --output-watch-events >watch.out 2>&1 &
watcher=$!
until grep -q "ADDED.*two" watch.out; do sleep 0.1; done
n label parcel two seen=yes >/dev/null
until grep -q "MODIFIED.*two" watch.out; do sleep 0.1; done
kill "$watcher"
ok "get --watch"

# --- describe, explain
has "$(n describe parcel one)" "Address: +Dale Road" "describe"
has "$(k explain parcels)" "Parcel is something to be carried" "explain"
has "$(k explain parcels.spec.weight)" "Weight in grams" "explain a field"
has "$(k explain parcels --recursive)" "stamps" "explain --recursive"

# --- change
has "$(n patch parcel two --type=merge -p '{"spec":{"address":"Sea View"}}')" "patched" "patch: merge"
has "$(n patch parcel two --type=json -p '[{"op":"replace","path":"/spec/weight","value":9}]')" "patched" "patch: json"
has "$(n patch configmap settings --type=strategic -p '{"data":{"b":"2"}}')" "patched" "patch: strategic"
refused "unsupported|not supported|415" "patch: strategic is refused for a custom resource" n patch parcel two --type=strategic -p '{}'
has "$(n patch parcel two --subresource=status --type=merge -p '{"status":{"phase":"Sent","conditions":[{"type":"Sent","status":"True"}]}}')" "patched" "patch --subresource=status"
is "$(n get parcel two -o jsonpath='{.spec.address} {.spec.weight} {.status.phase}')" "Sea View 9 Sent" "patches arrived"
has "$(n label parcel two size=big)" "labeled" "label"
refused "already has a value|--overwrite" "label refuses to overwrite" n label parcel two size=small
has "$(n label parcel two size=small --overwrite)" "labeled" "label --overwrite"
has "$(n label parcel two size-)" "unlabeled" "label removes"
has "$(n annotate parcel two note=hello)" "annotated" "annotate"
is "$(n get parcel two -o jsonpath='{.metadata.annotations.note}')" "hello" "the annotation is there"
cat >editor <<'EDITOR'
#!/bin/sh
sed -i "s/Sea View/Mill Lane/" "$1"
EDITOR
chmod +x editor
has "$(EDITOR=$PWD/editor n edit parcel two)" "edited" "edit"
is "$(n get parcel two -o jsonpath='{.spec.address}')" "Mill Lane" "the edit arrived"
n get parcel two -o json | sed 's/Mill Lane/Low Street/' >two.json
has "$(n replace -f two.json)" "replaced" "replace"
refused "the object has been modified|Conflict" "replace of a stale object" n replace -f two.json
n patch parcel two --type=merge -p '{"spec":{"replicas":1}}' >/dev/null
has "$(n scale parcel two --replicas=4)" "scaled" "scale"
is "$(n get parcel two -o jsonpath='{.spec.replicas}')" "4" "the scale arrived"

# --- dry run
has "$(n apply --dry-run=server -f parcel.yaml 2>&1)" "server dry run" "apply --dry-run=server"
has "$(n patch parcel two --type=merge -p '{"spec":{"weight":77}}' --dry-run=server -o jsonpath='{.spec.weight}')" "77" "patch --dry-run=server shows the result"
is "$(n get parcel two -o jsonpath='{.spec.weight}')" "9" "and writes nothing"
has "$(n delete parcel two --dry-run=server)" "deleted.*\(server dry run\)" "delete --dry-run=server"

# --- wait
has "$(n wait --for=condition=Sent --timeout=10s parcel/two)" "condition met" "wait for a condition"
has "$(n wait --for=jsonpath='{.status.phase}'=Sent --timeout=10s parcel/two)" "condition met" "wait for a jsonpath"
refused "timed out" "wait gives up" n wait --for=condition=Never --timeout=1s parcel/two
n wait --for=condition=Late --timeout=20s parcel/one >wait.out 2>&1 &
waiter=$!
n patch parcel one --subresource=status --type=merge -p '{"status":{"conditions":[{"type":"Late","status":"True"}]}}' >/dev/null
wait "$waiter" || fail "wait for a condition to come: $(cat wait.out)"
ok "wait for a condition to come"

# --- delete
n patch parcel one --type=merge -p '{"metadata":{"finalizers":["midflight.dev/hold"]}}' >/dev/null
has "$(n delete parcel one --wait=false)" "deleted" "delete with a finalizer"
has "$(n get parcel one -o jsonpath='{.metadata.deletionTimestamp}')" "20" "it is being deleted"
n wait --for=delete --timeout=20s parcel/one >wait.out 2>&1 &
waiter=$!
n patch parcel one --type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]' >/dev/null
wait "$waiter" || fail "wait --for=delete: $(cat wait.out)"
ok "wait --for=delete"
has "$(n delete parcel none --ignore-not-found && echo quiet)" "quiet" "delete --ignore-not-found"

owned() {
    local uid
    uid=$(n create -f - -o jsonpath='{.metadata.uid}' <<<"{apiVersion: kubectl.midflight.dev/v1, kind: Parcel, metadata: {name: $1}}")
    n create -f - >/dev/null <<<"{apiVersion: v1, kind: ConfigMap, metadata: {name: of-$1, ownerReferences: [
        {apiVersion: kubectl.midflight.dev/v1, kind: Parcel, name: $1, uid: $uid, blockOwnerDeletion: true}]}}"
}
gone() {
    n wait --for=delete --timeout=30s "configmap/of-$1" >/dev/null || fail "delete --cascade: of-$1 stays"
}
owned background
n delete parcel background --cascade=background >/dev/null
gone background
ok "delete --cascade=background"
owned foreground
n delete parcel foreground --cascade=foreground >/dev/null
is "$(n get configmap of-foreground --ignore-not-found)" "" "delete --cascade=foreground"
owned orphan
n delete parcel orphan --cascade=orphan >/dev/null
is "$(n get configmap of-orphan -o jsonpath='{.metadata.name}{.metadata.ownerReferences}')" "of-orphan" "delete --cascade=orphan"
has "$(n delete configmap --all)" "deleted" "delete --all"

# --- discovery, auth, events
has "$(k api-resources)" "parcels +pcl +kubectl.midflight.dev/v1 +true +Parcel" "api-resources"
has "$(k api-resources --verbs=list --namespaced=false -o name)" "nodes" "api-resources by verb"
has "$(k api-versions)" "kubectl.midflight.dev/v1" "api-versions"
has "$(k version)" "Server Version: v1\." "version"
is "$(n auth can-i create parcels)" "yes" "auth can-i"
has "$(k auth whoami -o jsonpath='{.status.userInfo.groups}')" "system:masters" "auth whoami"
has "$(k get --raw /readyz)" "ok" "get --raw"
k create -f - >/dev/null <<YAML
apiVersion: v1
kind: Event
metadata: {name: two.1, namespace: $space}
involvedObject: {apiVersion: kubectl.midflight.dev/v1, kind: Parcel, name: two, namespace: $space, uid: $(n get parcel two -o jsonpath='{.metadata.uid}')}
reason: Weighed
message: it is heavy
type: Normal
count: 1
lastTimestamp: "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
firstTimestamp: "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
source: {component: scale}
YAML
has "$(n events --for parcel/two)" "Weighed +Parcel/two +it is heavy" "events"
has "$(n get events)" "Weighed" "get events"
has "$(n describe parcel two)" "Normal +Weighed .* it is heavy" "describe shows events"
has "$(k describe namespace "$space")" "Status: +Active" "describe namespace"
has "$(k delete namespace "$space" --timeout=60s)" "deleted" "delete namespace waits until it is gone"
refused "not found" "the namespace is gone" k get namespace "$space"
has "$(k delete -f "$here/definition.yaml" --timeout=60s)" "deleted" "delete a CRD"
