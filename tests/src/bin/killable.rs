//! An API server without TLS on a free port of loopback, made to be killed.
//!
//! Everyone who connects is admin: it serves tests on the same machine.

use std::convert::Infallible;
use std::path::PathBuf;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use midflight_apiserver::auth::Identity;
use midflight_apiserver::{ApiServer, Config};
use tokio::net::TcpListener;
use tower::ServiceExt;

#[tokio::main]
#[allow(clippy::print_stdout)]
async fn main() {
    let folder: PathBuf =
        std::env::args_os().nth(1).expect("the folder of the server is its argument").into();
    let server = ApiServer::open(Config::new(folder)).await.expect("the server opens");
    let service = server.service(Identity::admin("history"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    println!("listening on {}", listener.local_addr().expect("a listener has an address"));
    loop {
        let (stream, _) = listener.accept().await.expect("connections can be accepted");
        stream.set_nodelay(true).expect("a socket takes its options");
        let service = service.clone();
        let answer = service_fn(move |request| {
            let service = service.clone();
            async move {
                Ok::<_, Infallible>(service.oneshot(request).await.unwrap_or_else(|never| match never {}))
            }
        });
        // A client that goes away is no concern of the server.
        tokio::spawn(async {
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
        });
    }
}
