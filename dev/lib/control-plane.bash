# Starts and stops etcd, kube-apiserver and kube-controller-manager in a state folder.
# Sourced by dev/kubernetes.
#
# What runs is known by its pid and the time it started, so that `down` never
# signals a stranger who got the same pid.
# shellcheck shell=bash

# start_time PID: when that process started, in ticks since boot; nothing if there is none.
start_time() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    stat=${stat##*) }
    # shellcheck disable=SC2086  # the fields are words
    set -- $stat
    echo "${20}"
}

# launch STATE NAME COMMAND...: starts a program detached from this terminal, remembers who it is.
launch() {
    local state=$1 name=$2
    shift 2
    setsid "$@" >"$state/$name.log" 2>&1 </dev/null 8>&- 9>&- &
    local pid=$!
    echo "$pid $(start_time "$pid")" >"$state/$name.pid"
}

# alive STATE NAME: whether the very process that was launched still runs.
alive() {
    local pid started
    [[ -f $1/$2.pid ]] && read -r pid started <"$1/$2.pid" && [[ -n $started && $(start_time "$pid") == "$started" ]]
}

# listens STATE NAME PORT: whether that process, and no other, listens on the loopback port.
listens() {
    local pid inode
    read -r pid _ <"$1/$2.pid"
    inode=$(awk -v port="$(printf ':%04X' "$3")" '$4 == "0A" && $2 ~ port "$" { print $10; exit }' /proc/net/tcp)
    [[ -n $inode ]] && find "/proc/$pid/fd" -lname "socket:\[$inode\]" 2>/dev/null | grep -q .
}

# await STATE NAME SECONDS COMMAND...: until the command succeeds; fails when the program dies or time is up.
await() {
    local state=$1 name=$2 deadline=$(($(now_ms) + $3 * 1000)) began
    began=$(now_ms)
    shift 3
    until "$@" >/dev/null 2>&1; do
        if ! alive "$state" "$name" || (($(now_ms) > deadline)); then
            say "$name did not become ready:"
            tail -5 "$state/$name.log" >&2
            return 1
        fi
        sleep 0.1
    done
    say "$name ready in $(since "$began")"
}

control_plane_runs() {
    alive "$1" etcd && alive "$1" kube-apiserver && alive "$1" kube-controller-manager && [[ -f $1/kubeconfig ]]
}

make_credentials() {
    local state=$1 user
    command -v openssl >/dev/null || die "openssl is needed for the control plane's certificates (apt install openssl)"
    (
        cd "$state"
        umask 077
        # Browsers aside, rustls too wants X.509 v3: extensions are given to both certificates.
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj /CN=judge-ca \
            -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
            -keyout ca.key -out ca.crt
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=kube-apiserver \
            -keyout server.key -out server.csr
        openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.crt -extfile <(
            echo "subjectAltName=IP:127.0.0.1,DNS:localhost"
            echo "extendedKeyUsage=serverAuth"
        )
        openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out accounts.key
        for user in "admin,admin,\"system:masters\"" "viewer,viewer,\"judge:viewers\"" \
            "system:kube-controller-manager,system:kube-controller-manager"; do
            echo "$(openssl rand -hex 24),$user"
        done >tokens.csv
    ) 2>"$state/credentials.log" || {
        tail -5 "$state/credentials.log" >&2
        die "making certificates failed"
    }
}

# write_kubeconfig STATE PORT USER FILE
write_kubeconfig() {
    local token
    token=$(awk -F, -v user="$3" '$2 == user { print $1 }' "$1/tokens.csv")
    (
        umask 077
        cat >"$4" <<CONFIG
apiVersion: v1
kind: Config
current-context: judge
clusters:
- name: judge
  cluster:
    server: https://127.0.0.1:$2
    certificate-authority-data: $(base64 -w0 <"$1/ca.crt")
users:
- name: $3
  user:
    token: $token
contexts:
- name: judge
  context: {cluster: judge, user: "$3", namespace: default}
CONFIG
    )
}

# Ports are asked of the kernel and may be lost before they are used: then other ones are tried.
start_control_plane() {
    local bin=$1 state=$2 attempt began
    began=$(now_ms)
    stop_control_plane "$state"
    rm -rf "$state"
    mkdir -p "$state"
    chmod 700 "$state"
    make_credentials "$state"
    for attempt in 1 2 3; do
        if start_on_free_ports "$bin" "$state"; then
            say "control plane up in $(since "$began")"
            return 0
        fi
        say "attempt $attempt failed"
        stop_control_plane "$state"
        rm -rf "$state/etcd"
    done
    die "the control plane did not start; logs are in $state"
}

start_on_free_ports() {
    local bin=$1 state=$2 client peer secure
    { read -r client && read -r peer && read -r secure; } < <("$bin/ports" 3)

    launch "$state" etcd "$bin/etcd" --data-dir "$state/etcd" --log-level warn \
        --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
        --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
        --initial-cluster "default=http://127.0.0.1:$peer"
    await "$state" etcd 30 listens "$state" etcd "$client" || return 1

    # Anonymous requests are refused, as the embedded server does. ServiceAccount admission is off: pods of
    # the tests need no account.
    launch "$state" kube-apiserver "$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$client" \
        --bind-address 127.0.0.1 --secure-port "$secure" --advertise-address 127.0.0.1 --endpoint-reconciler-type none \
        --tls-cert-file "$state/server.crt" --tls-private-key-file "$state/server.key" \
        --token-auth-file "$state/tokens.csv" --authorization-mode RBAC --anonymous-auth=false \
        --disable-admission-plugins ServiceAccount --allow-privileged=true \
        --service-account-issuer https://judge.invalid --service-account-key-file "$state/accounts.key" \
        --service-account-signing-key-file "$state/accounts.key" --service-cluster-ip-range 10.96.0.0/16
    write_kubeconfig "$state" "$secure" admin "$state/kubeconfig"
    write_kubeconfig "$state" "$secure" viewer "$state/viewer.kubeconfig"
    write_kubeconfig "$state" "$secure" system:kube-controller-manager "$state/controllers.kubeconfig"
    await "$state" kube-apiserver 120 serves "$bin" "$state" "$secure" || return 1
    "$bin/kubectl" --kubeconfig "$state/kubeconfig" create clusterrolebinding judge-viewers \
        --clusterrole view --group judge:viewers >/dev/null || return 1

    # Nodes are hollow: nobody renews their leases, so nobody may judge them by that.
    launch "$state" kube-controller-manager "$bin/kube-controller-manager" --kubeconfig "$state/controllers.kubeconfig" \
        --leader-elect=false --secure-port 0 --root-ca-file "$state/ca.crt" --use-service-account-credentials=true \
        --service-account-private-key-file "$state/accounts.key" \
        --controllers '*,-node-lifecycle-controller,-taint-eviction-controller'
    await "$state" kube-controller-manager 60 "$bin/kubectl" --kubeconfig "$state/kubeconfig" \
        get configmap kube-root-ca.crt --namespace default
}

# serves BIN STATE PORT: whether our own kube-apiserver says that it is ready.
serves() {
    listens "$2" kube-apiserver "$3" && "$1/kubectl" --kubeconfig "$2/kubeconfig" get --raw /readyz
}

# Stops by pid what was launched in the folder, newest first; asks first, insists after ten seconds.
stop_control_plane() {
    local state=$1 name pid deadline
    for name in kube-controller-manager kube-apiserver etcd; do
        if alive "$state" "$name"; then
            read -r pid _ <"$state/$name.pid"
            kill -TERM "$pid" 2>/dev/null || true
            deadline=$(($(now_ms) + 10000))
            while alive "$state" "$name"; do
                (($(now_ms) < deadline)) || kill -KILL "$pid" 2>/dev/null || true
                sleep 0.05
            done
            say "stopped $name"
        fi
        rm -f "$state/$name.pid"
    done
}
