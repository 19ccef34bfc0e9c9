#!/bin/sh
# Makes the services' credentials once: certificates of their own authority, NATS accounts, S3 keys.
#   setup.sh NATS_URL NAME...      NAME: host name or IP address in the certificates. Writes to the current folder:
#   nats/      a node's certificate, and accounts.conf         s3/      the S3 server's identities
#   roles/     credentials of a run                            gateway/ credentials of the gateway
#   guests/    producer.json and viewer.json for others        ca.pem   in each folder
# Each service mounts only its own folder.
set -eu
umask 077

nats_url=$1
shift
if [ -e roles/roles.json ]; then
    echo "setup.sh: the credentials exist already"
    exit 0
fi
rm -rf nats s3 roles gateway guests authority made
mkdir nats s3 roles gateway guests authority

names=""
for name in "$@"; do
    case $name in
        *[!0-9.]*) names="$names,DNS:$name" ;;
        *) names="$names,IP:$name" ;;
    esac
done

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=slime-events authority" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
    -keyout authority/ca.key -out authority/ca.pem 2> authority/log
for folder in nats gateway; do
    printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n' "${names#,}" > authority/extensions
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=slime-events $folder" \
        -keyout $folder/tls.key -out authority/$folder.csr 2>> authority/log
    openssl x509 -req -in authority/$folder.csr -CA authority/ca.pem -CAkey authority/ca.key -CAcreateserial -days 825 \
        -extfile authority/extensions -out $folder/tls.pem 2>> authority/log
done
rm -r authority/log authority/extensions authority/*.csr
for folder in nats roles gateway guests; do
    cp authority/ca.pem $folder/ca.pem
done

slime-events nats-config --out made --nats-url "$nats_url" > /dev/null
mv made/accounts.conf nats/
mv made/gateway.json gateway/
mv made/producer.json made/viewer.json guests/

key=$(openssl rand -hex 10)
secret=$(openssl rand -hex 20)
cat > s3/identities.json <<END
{"identities": [{"name": "slime-events", "credentials": [{"accessKey": "$key", "secretKey": "$secret"}],
 "actions": ["Admin", "Read", "List", "Tagging", "Write"]}]}
END
cat > roles/aws <<END
[default]
aws_access_key_id = $key
aws_secret_access_key = $secret
END
openssl rand -hex 32 > roles/ray-token
mv made/roles.json roles/roles.json # last: its existence marks the end of the setup
rmdir made
