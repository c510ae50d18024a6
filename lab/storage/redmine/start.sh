# SPDX-License-Identifier: Apache-2.0
# The first process of the containers. $PARTS: both, web or database. See redmine.go for the other settings.
set -e
/bin/busybox mkdir -p /opt/busybox
/bin/busybox --install -s /opt/busybox # tools that no package here has; those of packages come first
export PATH="$PATH:/opt/busybox" LANG=C.UTF-8 HOME=/root

if [ "$PARTS" != web ]; then
    mkdir -p /run/mysqld
    chown mysql:mysql /run/mysqld
    if [ ! -d /data/mysql ]; then
        mkdir /data/mysql
        chown mysql:mysql /data/mysql
        mariadb-install-db --user=mysql --datadir=/data/mysql --auth-root-authentication-method=normal \
            --skip-test-db >/data/install.log
    fi
    chmod 755 /data
    set -- mariadbd --user=mysql --datadir=/data/mysql --socket=/run/mysqld/mysqld.sock --bind-address=0.0.0.0 \
        --skip-name-resolve --init-file=/lab/init.sql --innodb-flush-log-at-trx-commit="$FLUSH"
    if [ "$PARTS" = database ]; then exec "$@"; fi
    "$@" >/data/mariadb.log 2>&1 &
fi

mkdir -p /data/files /data/log /run/passenger /var/cache/redmine/default/tmp
cat >/etc/redmine/default/database.yml <<END
production:
  {adapter: mysql2, database: redmine, host: $DATABASE, username: redmine, password: redmine, encoding: utf8mb4}
END
until mariadb -h "$DATABASE" -u redmine -predmine redmine -e 'select 1' >/dev/null 2>&1; do sleep 0.5; done
cd /usr/share/redmine
bundle install --local --quiet
export RAILS_ENV=production REDMINE_INSTANCE=default REDMINE_LANG=en SCHEMA=/dev/null
if ! mariadb -h "$DATABASE" -u redmine -predmine redmine -e 'select 1 from issues' >/dev/null 2>&1; then
    bundle exec rake db:migrate >/data/migrate.log 2>&1
    bundle exec rake redmine:load_default_data >>/data/migrate.log 2>&1
    bundle exec rails runner /lab/setup.rb >/data/setup.log 2>&1
fi
chown -R www-data:www-data /data/files /data/log /var/cache/redmine /var/lib/redmine
exec apache2 -f /lab/httpd.conf -DFOREGROUND
